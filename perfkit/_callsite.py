"""The user's line: which frame of a stack a person would call their own.

It is the innermost frame of user code: the launched script or ``-m`` package wherever it lies, plus
everything outside perfkit, torch, the standard library and site-packages. If a stack has none, it is
the innermost frame outside perfkit and torch, and its owner is that library's name instead of "user".
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import NamedTuple

_PERFKIT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DEMO = os.path.join(_PERFKIT, "demo") + os.sep
_STDLIB = tuple(
    dict.fromkeys(
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib")
        if (path := sysconfig.get_path(name)) is not None
    )
)
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

USER = "user"

#: File name -> owner: "user", "perfkit", "torch", "python", or a library's import name.
_owners: dict[str, str] = {}
#: Folders and files that are the user's wherever they lie: see `claim`.
_claimed: list[str] = []


class CallSite(NamedTuple):
    """A line of code and whose it is.

    ``via`` is the innermost frame below the line that is neither perfkit's nor torch's nor the line's
    own file, as ``file:line``: where inside a library the thing happened. None where there is none.
    """

    file: str
    line: int
    function: str
    owner: str
    via: str | None = None


def claim(path: str) -> None:
    """Count a launched script, or the folder of a ``-m`` package, as the user's code wherever it lies."""
    real = os.path.realpath(path)
    _claimed.append(real + os.sep if os.path.isdir(real) else real)
    _owners.clear()


def owner_of(file: str) -> str:
    """Whose code a file is: "user", "perfkit", "torch", "python", or a library's import name."""
    try:
        return _owners[file]
    except KeyError:
        owner = _owners[file] = _find_owner(file)
        return owner


def _find_owner(file: str) -> str:
    if file.startswith("<"):
        # "<string>", "<frozen importlib._bootstrap>": generated code is nobody's line; a notebook cell
        # has a real file name (ipykernel) or "<ipython-input-...>", which is the user's.
        return USER if file.startswith("<ipython-input") else "python"
    real = os.path.realpath(file)
    if any(real == path or (path.endswith(os.sep) and real.startswith(path)) for path in _claimed):
        return USER
    if real.startswith(_PERFKIT) and not real.startswith(_DEMO):
        return "perfkit"
    for marker in _SITE:
        if marker in real:
            return real.rsplit(marker, 1)[1].split(os.sep, 1)[0].removesuffix(".py")
    if real.startswith(_STDLIB):
        return "python"
    # perfkit's integrations lie beside the package in a checkout; they are perfkit's in any place.
    integrations = os.path.realpath(os.path.join(_PERFKIT, "integrations")) + os.sep
    return "perfkit" if real.startswith(integrations) else USER


def function_name(code: CodeType) -> str:
    """What a person would call the function that the code belongs to: ``Model.forward``."""
    # co_qualname ("Model.forward") came with Python 3.11.
    name: str = getattr(code, "co_qualname", code.co_name)
    # Before Python 3.12 a comprehension runs in a frame of its own; it is a line of the function around it.
    while name.endswith(_COMPREHENSIONS):
        name = name.rpartition(".<locals>")[0] or name.rpartition("<")[0] or "<module>"
    return name


def line_of(frame: FrameType) -> int:
    """The line that a frame has come to; its function's first where it stands between lines.

    ``f_lineno`` is None there: for another thread that is between a function's call and its first line, say.
    """
    line: int | None = frame.f_lineno
    return frame.f_code.co_firstlineno if line is None else line


def stack_of(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """(code, line) of each frame, inner ones first, for frames of another thread.

    They are read at once and let go, with nothing in between that gives the interpreter's lock away, as a look at a
    file does, or a long garbage collection: that thread would go on, and torch.compile leaves frames behind that cannot
    be read any more (a process died reading one).
    """
    stack = []
    collects = gc.isenabled()
    gc.disable()
    try:
        while frame is not None:
            stack.append((frame.f_code, line_of(frame)))
            frame = frame.f_back
    finally:
        if collects:
            gc.enable()
    return stack


def find_callsite(frame: FrameType | None) -> CallSite | None:
    """Walk outwards from ``frame`` to the user's line; None for a stack of perfkit's own frames only."""
    library: CallSite | None = None
    inner: tuple[str, int] | None = None
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        owner = owner_of(file)
        if owner == USER:
            via = f"{inner[0]}:{inner[1]}" if inner is not None else None
            return CallSite(file, line_of(frame), function_name(code), USER, via)
        if owner not in ("perfkit", "torch", "python"):
            if inner is None:
                inner = (file, line_of(frame))
            if library is None:
                library = CallSite(file, line_of(frame), function_name(code), owner)
        frame = frame.f_back
    return library


def caller(depth: int = 1) -> CallSite | None:
    """The user's line that led to the function ``depth`` frames above this one."""
    return find_callsite(sys._getframe(depth))
