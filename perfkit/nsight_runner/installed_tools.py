"""Which nsys and ncu are installed, which options they have, and whether there is a GPU for them."""

from __future__ import annotations

import ctypes
import re
import shlex
import subprocess
from typing import NamedTuple

from perfkit._env import NSIGHT_VARIABLES, NsightName, find_nsight
from perfkit._stderr import print_message
from perfkit.errors import UsageError

INSTALL: dict[NsightName, str] = {
    "nsys": "Nsight Systems: the package nsight-systems-cli of NVIDIA's CUDA repository or nsight-systems of your"
    " distribution (Debian: section non-free), or a CUDA toolkit, which holds it",
    "ncu": "Nsight Compute: the package cuda-nsight-compute or nsight-compute of NVIDIA's CUDA repository or of your"
    " distribution, or a CUDA toolkit, which holds it",
}

#: A version that has every option used here: nsys by its own help, ncu by its manual. What an older one has, its
#: help says.
COMPLETE: dict[NsightName, str] = {"nsys": "2022.4", "ncu": "2023.3"}

#: A first start from a cold network file system takes some seconds.
_MOST_SECONDS = 60

_VERSION = re.compile(r"\b[Vv]ersion (\d{4}\.\d+)")
#: The help of nsys names two options at once: ``--nvtx-domain-[include|exclude]=``.
_TWO_IN_ONE = re.compile(r"(--[\w-]+)\[(\w+)\|(\w+)\]")


class Tool(NamedTuple):
    """An installed tool: ``version`` as in "2022.4", ``options`` all that it takes; None where it does not tell."""

    name: NsightName
    path: str
    version: str | None
    options: frozenset[str] | None


class Part(NamedTuple):
    """An option of a command with its value; ``asked`` where the user asked for it, else it is perfkit's own."""

    words: tuple[str, ...]
    asked: bool


def find_tool(name: NsightName) -> Tool:
    """The installed tool, with its version and its options.

    Raises:
        UsageError: there is none; the text says what to install.
    """
    path, why = find_nsight(name)
    if path is None:
        raise UsageError(
            f"{why}: install {INSTALL[name]}; then put {name} on the PATH, or its path into {NSIGHT_VARIABLES[name]}."
            " --print shows the command without it"
        )
    help_ = _output([path, "profile", "--help"] if name == "nsys" else [path, "--help"])
    version = _VERSION.search(_output([path, "--version"]))
    options = frozenset(re.findall(r"--[a-z][\w-]+", _TWO_IN_ONE.sub(r"\1\2 \1\3", help_)))
    return Tool(name, path, version[1] if version else None, options or None)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} cannot be started: {error}") from None
    return done.stdout + done.stderr


def fit(parts: list[Part], tool: Tool | None) -> list[str]:
    """The words of those parts that the tool takes; all of them where it is not known.

    An option of perfkit's own that an old one lacks is left out, and that is said.

    Raises:
        UsageError: the user asked for an option that the tool does not have.
    """
    words: list[str] = []
    for part in parts:
        option = part.words[0].partition("=")[0]
        if tool is None or tool.options is None or option in tool.options or not option.startswith("--"):
            words += part.words
            continue
        version = tool.version or "this version"
        needed = f"{tool.name} {COMPLETE[tool.name]} has it"
        if part.asked:
            raise UsageError(f"{tool.path} ({version}) has no {option}: {needed}; install that or a later one")
        print_message(f"{tool.path} ({version}) has no {option}, which is left out; {needed}")
    return words


def split_options(option: str, text: str) -> list[str]:
    """The words of options that are passed on to a tool as they are.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} takes options as a shell would, got {text!r}: {error}") from None


def cuda_here() -> bool:
    """Whether this machine has a CUDA device that may be used, by the driver's word; torch is not loaded."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
