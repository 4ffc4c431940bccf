"""Sums of squares of parameters that a loss holds: a penalty that an optimizer has as ``weight_decay``.

`ConstantOpLog` hands on the ops of a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor
from perfkit.record.samplers.call_paths import Site
from perfkit.run.records import WeightPenalty

#: Parameters that are looked at in a step, and different shapes of them that are kept.
_MAX_PARAMETERS, _MAX_SHAPES = 10_000, 64
_NORMS = ("linalg_vector_norm", "norm", "frobenius_norm")
_SUMS = ("sum", "mean")


class _Square(NamedTuple):
    """The squares of one parameter."""

    version: int
    shape: tuple[int, ...]


class WeightPenaltyCounts:
    """Finds the penalties of one step; keeps no tensor alive."""

    def __init__(self) -> None:
        #: By the address of the memory. What was freed is replaced by what is made there next.
        self._squares: dict[int, _Square] = {}
        #: Line -> the shapes of the parameters that it sums up.
        self._found: dict[Site, list[tuple[int, ...]]] = {}
        self._looked_at = 0

    def add(self, func: Any, arguments: Any, out: Any, site: Site) -> None:
        """An op of a line of the user's has returned ``out`` for these positional arguments."""
        name = func.overloadpacket.__name__
        if not arguments or not is_tensor(out) or not is_tensor(arguments[0]):
            return
        one = arguments[0]
        if name in _SUMS and out.numel() == 1:
            square = self._squares.pop(one.data_ptr(), None) if self._squares else None
            if square is not None and square == _Square(one._version, tuple(one.shape)):
                self._found.setdefault(site, []).append(square.shape)
            return
        self._squares.pop(out.data_ptr(), None)
        if self._looked_at >= _MAX_PARAMETERS or not _is_parameter(one):
            return
        if name in _NORMS and out.numel() == 1:
            self._looked_at += 1
            self._found.setdefault(site, []).append(tuple(one.shape))
        elif _squares(name, arguments):
            self._looked_at += 1
            self._squares[out.data_ptr()] = _Square(out._version, tuple(out.shape))

    def rows(self) -> tuple[WeightPenalty, ...]:
        """The lines that sum up squares of parameters."""
        return tuple(
            WeightPenalty(
                file=code.co_filename,
                line=line,
                function=function_name(code),
                owner=USER,
                parameters=len(shapes),
                elements=sum(torch.Size(shape).numel() for shape in shapes),
                shapes=tuple(dict.fromkeys(shapes))[:_MAX_SHAPES],
            )
            for (code, line), shapes in self._found.items()
        )


def _squares(name: str, arguments: Any) -> bool:
    """Whether an op squares its first argument; `torch.square` is a power too."""
    if len(arguments) < 2:
        return False
    one, by = arguments[:2]
    return (name == "mul" and by is one) or (name == "pow" and not is_tensor(by) and by == 2)


def _is_parameter(tensor: Any) -> bool:
    """Whether a loss gets gradients of it, and an optimizer may change it."""
    return bool(tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled())
