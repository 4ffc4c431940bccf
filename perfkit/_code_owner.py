"""Whose code a frame runs: the user's, perfkit's, torch's, Python's or a library's.

The launched script or ``-m`` package is the user's code wherever it lies, and so is everything outside perfkit, torch,
the standard library and site-packages.
"""

from __future__ import annotations

import functools
import gc
import itertools
import linecache
import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import TypeVar

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

#: The first line of a class or function.
_OPENING = re.compile(r"([ \t]*)(?:async +)?(class|def) +(\w+)")

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

USER = "user"

F = TypeVar("F", bound=Callable[..., object])

#: File name -> owner: "user", "perfkit", "torch", "python", or a library's import name.
_owners: dict[str, str] = {}
#: Folders and files that are the user's wherever they lie: see `claim`.
_claimed: list[str] = []
#: The code of functions that do perfkit's own work: see `own_work`.
_own_work: set[CodeType] = set()


def claim(path: str) -> None:
    """Count a launched script, or the folder of a ``-m`` package, as the user's code wherever it lies."""
    real = os.path.realpath(path)
    _claimed.append(real + os.sep if os.path.isdir(real) else real)
    _owners.clear()


def owner_of(file: str) -> str:
    """The owner of a file: "user", "perfkit", "torch", "python", or a library's import name."""
    try:
        return _owners[file]
    except KeyError:
        owner = _owners[file] = _find_owner(file)
        return owner


def _find_owner(file: str) -> str:
    if file.startswith("<"):
        # "<string>", "<frozen importlib._bootstrap>" are generated code. A notebook cell has a real file name
        # (ipykernel) or "<ipython-input-...>".
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
    # In a checkout the integrations lie next to the package, not inside.
    integrations = os.path.realpath(os.path.join(_PERFKIT, "integrations")) + os.sep
    return "perfkit" if real.startswith(integrations) else USER


def own_work(function: F) -> F:
    """A decorator: what torch does below ``function`` is perfkit's work, not that of the line that called perfkit.

    Wrappers around the program's functions must not have it.
    """
    _own_work.add(function.__code__)
    return function


def is_own_work(frame: FrameType | None) -> bool:
    """Whether ``frame`` runs below a function of `own_work`, without the program's or a library's code between."""
    for outer in frames_outwards(frame):
        if outer.f_code in _own_work:
            return True
        if owner_of(outer.f_code.co_filename) not in ("perfkit", "torch", "python"):
            return False
    return False


def function_name(code: CodeType) -> str:
    """The qualified name of the function that the code belongs to: ``Model.forward``."""
    # co_qualname ("Model.forward") came with Python 3.11.
    name: str = getattr(code, "co_qualname", None) or _qualified(code.co_name, code.co_filename, code.co_firstlineno)
    # Before Python 3.12 a comprehension runs in a frame of its own; report the function around it.
    while name.endswith(_COMPREHENSIONS):
        name = name.rpartition(".<locals>")[0] or name.rpartition("<")[0] or "<module>"
    return name


@functools.lru_cache(maxsize=4096)  # a program has some hundred functions that are asked for
def _qualified(name: str, file: str, line: int) -> str:
    """The qualified name of a function of Python 3.10, by the indentation of the ``class`` and ``def`` lines above it.

    A class or a function in the text of a string, further left than the function, is mistaken for the one around it.
    """
    lines = linecache.getlines(file)[:line]
    if name.startswith("<module") or len(lines) < line:
        return name
    found, indent = name, _indent(lines[-1])
    for text in reversed(lines[:-1]):
        opening = _OPENING.match(text)
        if opening is not None and len(opening[1]) < indent:
            found = f"{opening[3]}.{'' if opening[2] == 'class' else '<locals>.'}{found}"
            indent = len(opening[1])
        elif name.startswith("<") and found == name and text.strip():
            indent = min(indent, _indent(text))  # an expression may begin further right than its statement
        if indent == 0:
            break
    return found


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def line_of(frame: FrameType) -> int:
    """The line that a frame runs; the function's first line where ``f_lineno`` is None.

    It is None between a function's call and its first line, which happens to frames of other threads.
    """
    line: int | None = frame.f_lineno
    return frame.f_code.co_firstlineno if line is None else line


def expression_at(code: CodeType, instruction: int) -> str:
    """The source of the expression at an instruction; "" if it spans several lines, or on Python 3.10."""
    first, last, start, end = _position(code, instruction)
    if first is None or first != last or start is None or end is None:
        return ""
    # Columns count bytes of UTF-8.
    return linecache.getline(code.co_filename, first).encode()[start:end].decode(errors="replace").strip()


def expression_end(code: CodeType, instruction: int) -> tuple[int, int] | None:
    """Where the expression at an instruction ends: line, and column in bytes of UTF-8; None on Python 3.10."""
    _, line, _, column = _position(code, instruction)
    return None if line is None or column is None else (line, column)


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    """First and last line, first and last column."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return None, None, None, None
    # Two bytes of bytecode per entry.
    found: tuple[int | None, int | None, int | None, int | None]
    found = next(itertools.islice(positions(), instruction // 2, None))
    return found


def frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """``frame`` and the frames that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def stack_of(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """(code, line) of each frame, innermost first, for frames of another thread.

    All frames are read before anything can release the interpreter lock, such as file access or a long garbage
    collection. Otherwise that thread would continue, and torch.compile leaves frames behind that cannot be read any
    more (a process crashed reading one).
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


def user_and_library_frame(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """The innermost frame of user code from ``frame`` outwards, and the innermost library frame inside it.

    A library is anything but perfkit, torch and Python. Either is None where the stack has none.
    """
    library: FrameType | None = None
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner == USER:
            return frame, library
        if library is None and owner not in ("perfkit", "torch", "python"):
            library = frame
        frame = frame.f_back
    return None, library
