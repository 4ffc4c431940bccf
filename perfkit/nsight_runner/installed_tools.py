"""Which nsys and ncu are installed, which options they have, and whether there is a CUDA device for them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from typing import NamedTuple

from perfkit._env import NSIGHT_VARIABLES, NsightName, find_nsight
from perfkit.errors import UsageError

INSTALL: dict[NsightName, str] = {
    "nsys": "Nsight Systems: the package nsight-systems-cli of NVIDIA's CUDA repository or nsight-systems of your"
    " distribution (Debian: section non-free), or a CUDA toolkit, which contains it",
    "ncu": "Nsight Compute: the package cuda-nsight-compute or nsight-compute of NVIDIA's CUDA repository or of your"
    " distribution, or a CUDA toolkit, which contains it",
}

#: A version that has every option used here: nsys by its own help, ncu by its manual. The help of an older version
#: lists its options.
COMPLETE: dict[NsightName, str] = {"nsys": "2022.4", "ncu": "2023.3"}

#: A first start from a cold network file system takes some seconds.
_TIMEOUT_S = 60

_VERSION = re.compile(r"\b[Vv]ersion (\d{4}\.\d+)")
#: The help of nsys gives two options at once: ``--nvtx-domain-[include|exclude]=``.
_TWO_IN_ONE = re.compile(r"(--[\w-]+)\[(\w+)\|(\w+)\]")


class InstalledTool(NamedTuple):
    """An installed tool, its version (as in "2022.4") and all its options; None where its output has neither."""

    name: NsightName
    path: str
    version: str | None
    options: frozenset[str] | None


def find_tool(name: NsightName) -> InstalledTool:
    """The installed tool, with its version and its options.

    Raises:
        UsageError: it is not installed; the text says what to install.
    """
    path, why = find_nsight(name)
    if path is None:
        raise UsageError(
            f"{why}: install {INSTALL[name]}; then put {name} on the PATH, or set {NSIGHT_VARIABLES[name]} to its path."
            " --print shows the command without the tool"
        )
    help_ = _output([path, "profile", "--help"] if name == "nsys" else [path, "--help"])
    version = _VERSION.search(_output([path, "--version"]))
    options = frozenset(re.findall(r"--[a-z][\w-]+", _TWO_IN_ONE.sub(r"\1\2 \1\3", help_)))
    return InstalledTool(name, path, version[1] if version else None, options or None)


def listed_names(tool: InstalledTool, *words: str) -> frozenset[str]:
    """The first word of each line of a table that a tool prints, as that of ``ncu --list-sections``.

    Raises:
        UsageError: it cannot be started.
    """
    return frozenset(re.findall(r"^[A-Za-z]\w+", _output([tool.path, *words]), re.MULTILINE))


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} cannot be started: {error}") from None
    return done.stdout + done.stderr


def cuda_here() -> bool:
    """Whether this machine has a usable CUDA device, as the driver reports it; does not load torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
