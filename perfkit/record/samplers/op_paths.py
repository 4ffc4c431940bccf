"""The user's lines and the libraries' functions that lead to an op, at the op."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

import torch

from perfkit._code_owner import USER, frames_outwards, line_of, owner_of
from perfkit._location import Location
from perfkit.record.samplers.call_paths import Path, Site
from perfkit.record.samplers.source_lookup import find_calls, user_files

#: Lines that lead to an op.
_MAX_PATH = 16
#: Owners of frames between an op and who asked for it.
_BENEATH = ("torch", "python", "perfkit")
#: torch's modules whose own layers can be neither moved nor indexed from outside.
_CLOSED = tuple(f"torch/nn/modules/{name}.py" for name in ("rnn", "activation", "transformer"))
#: A library's layer that is used as torch's.
_LAYER_OF_LIBRARY = "torch_geometric/nn/dense/linear.py"


def path_of_op() -> tuple[Path, tuple[CodeType, ...], str | None]:
    """The user's lines that lead to the op, innermost first; a library's functions below them, outermost first.

    Third, the name of the class where the outermost of the libraries' functions is a method of a module.
    """
    path: list[Site] = []
    between: list[CodeType] = []
    outermost: FrameType | None = None
    for frame in frames_outwards(sys._getframe(2)):
        owner = owner_of(frame.f_code.co_filename)
        if owner == USER:
            path.append((frame.f_code, line_of(frame)))
            if len(path) == _MAX_PATH:
                break
        elif not path and owner not in _BENEATH:
            between.append(frame.f_code)
            outermost = frame
    module = outermost.f_locals.get("self") if outermost is not None else None
    name = type(module).__name__ if isinstance(module, torch.nn.Module) else None
    return tuple(path), tuple(reversed(between)), name


def is_closed() -> bool:
    """Whether a library, or a module of torch that gives no access to its layers, asked for the op."""
    for frame in frames_outwards(sys._getframe(1)):
        file = frame.f_code.co_filename.replace("\\", "/")
        owner = owner_of(frame.f_code.co_filename)
        if owner == USER:
            return False
        if file.endswith(_CLOSED) or (owner not in _BENEATH and not file.endswith(_LAYER_OF_LIBRARY)):
            return True
    return False


def calls_on(path: Path) -> Iterator[Path]:
    """The calls of functions on a path, innermost first: the function's code, and the lines that led to the call."""
    return (((code, 0), *path[at + 1 :]) for at, (code, _) in enumerate(path))


@functools.lru_cache(maxsize=64)  # the same modules are in each report
def made_at(module: str) -> Location | None:
    """The user's first line that makes a module of this class."""
    return next(iter(find_calls({module}, user_files()).get(module, ())), None)
