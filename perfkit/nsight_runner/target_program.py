"""The program that a tool starts: the user's command, with `perfkit run` inserted where it is a Python program.

Then ranges and steps are recorded without an edit, and windows open the tool's capture range.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perfkit._stderr import print_message
from perfkit.errors import UsageError

_PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?)?t?")
#: Options of python whose value is the next word.
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")
#: Options of torchrun without a value; all others have one, after ``=`` or as the next word.
_TORCHRUN_FLAGS = (
    *("-m", "--module", "--no-python", "--standalone"),
    *("--run-path", "--virtual-local-rank", "-h", "--help"),
)
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: Programs that start one process per rank, also on other machines.
_LAUNCHERS = ("mpirun", "mpiexec", "srun", "accelerate", "deepspeed", "horovodrun")

#: What is inserted before a script, or before ``-m`` and a module.
_PERFKIT_RUN = ("-m", "perfkit", "run")


class TargetProgram(NamedTuple):
    """A command in two parts: ``launcher`` starts the tool, once for each rank, and the tool starts ``words``.

    ``options_at`` is the position for options of the `perfkit run` in it, None without one; ``name`` is the name of
    the run.
    """

    launcher: tuple[str, ...]
    words: tuple[str, ...]
    options_at: int | None
    name: str

    @property
    def inside(self) -> bool:
        """Whether perfkit records in the program."""
        return self.options_at is not None

    def with_options(self, options: Sequence[str]) -> TargetProgram:
        """The same program, with options for the `perfkit run` in it."""
        if self.options_at is None:
            return self
        return self._replace(words=(*self.words[: self.options_at], *options, *self.words[self.options_at :]))


def plan_program(words: Sequence[str], *, module: bool, plain: bool) -> TargetProgram:
    """The program to start for the user's command; prints a message where perfkit cannot be inserted.

    Args:
        words: ``python train.py ...``, ``train.py ...``, ``torchrun ... train.py``, or any other command.
        module: ``words`` begin with the name of a module, as after ``python -m``.
        plain: Start it without perfkit in it.

    Raises:
        UsageError: the program or script does not exist.
    """
    words = tuple(words)
    if module:
        return _wrapped((sys.executable,), ("-m", *words), words[0], plain)
    if words[0].endswith((".py", ".pyw")):
        if not Path(words[0]).is_file():
            raise UsageError(f"the script {words[0]} does not exist: name a Python file, or a program")
        return _wrapped((sys.executable,), words, _stem(words[0]), plain)
    if shutil.which(words[0]) is None:
        raise UsageError(f"there is no program {words[0]}: name a Python script, or a command as in a shell")
    known = Path(words[0]).name
    if _PYTHON.fullmatch(known):
        return _python(words, plain)
    if known == "torchrun":
        return _torchrun(words[:1], words[1:], plain)
    if known == "perfkit" and words[1:2] == ("run",):
        return TargetProgram((), words, 2, "run")
    if not plain:
        if known in _LAUNCHERS:
            print_message(
                f"{known} starts other processes, which the tool may not see: put perfkit after it, so that each rank"
                f" has a report of its own ({known} ... perfkit nsys -- python train.py)"
            )
        print_message(
            f"{words[0]} is not started as a Python program: perfkit is not inside, so there will be no steps, no"
            " window and no ranges of perfkit"
        )
    return TargetProgram((), words, None, _stem(words[0]))


def _stem(name: str) -> str:
    """The name of its run, as `perfkit run` chooses it."""
    return re.sub(r"[^\w.-]+", "-", Path(name).stem) or "run"


def _wrapped(python: tuple[str, ...], program: tuple[str, ...], name: str, plain: bool) -> TargetProgram:
    if plain:
        return TargetProgram((), (*python, *program), None, name)
    before = (*python, *_PERFKIT_RUN)
    return TargetProgram((), (*before, *program), len(before), name)


def _python(words: tuple[str, ...], plain: bool) -> TargetProgram:
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "-c", "-m"):
        at += 2 if words[at] in _PYTHON_VALUES else 1
    python, rest = words[:at], words[at:]
    if rest[:1] == ("-m",) and len(rest) > 1:
        if rest[1] in _TORCHRUN_MODULES:
            return _torchrun((*python, *rest[:2]), rest[2:], plain)
        if rest[1:3] == ("perfkit", "run"):
            return TargetProgram((), words, at + 3, "run")
        name = rest[1]
    elif not rest or rest[0] in ("-", "-c", "-m"):
        if not plain:
            print_message("there is no script or module for perfkit to run: perfkit is not inside")
        return TargetProgram((), words, None, "python")
    else:
        name = _stem(rest[0])
        if not Path(rest[0]).exists():
            raise UsageError(f"the script {rest[0]} does not exist: name a Python file, or a module with -m")
    return _wrapped(python, rest, name, plain or not _has_perfkit(python[0]))


def _has_perfkit(python: str) -> bool:
    found = shutil.which(python)
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return True
    try:
        # On a cold network file system, a first start of Python takes some seconds.
        command = [python, "-c", "import perfkit"]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        print_message(
            f"{python} has no perfkit: perfkit is not inside, so there will be no steps, no window and no ranges of"
            f" perfkit; install it there, or use {sys.executable}"
        )
        return False
    return True


def _torchrun(launcher: tuple[str, ...], rest: tuple[str, ...], plain: bool) -> TargetProgram:
    """One tool for each rank: torchrun starts the tool instead of Python, and only there is RANK set."""
    options: list[str] = []
    at, python, module = 0, True, False
    while at < len(rest) and rest[at].startswith("-"):
        word = rest[at].replace("_", "-") if rest[at].startswith("--") and "=" not in rest[at] else rest[at]
        length = 1 if word in _TORCHRUN_FLAGS or "=" in word else 2
        if word in ("-m", "--module"):
            module = True
        elif word == "--no-python":
            python = False
        else:
            options += rest[at : at + length]
        at += length
    program = rest[at:]
    if not program:
        raise UsageError(f"{' '.join(launcher)} names no script: add it after the options of torchrun")
    if python and not module:
        program = (sys.executable, *program)
    inner = plan_program(program, module=module, plain=plain)
    return inner._replace(launcher=(*launcher, *options, "--no-python"))
