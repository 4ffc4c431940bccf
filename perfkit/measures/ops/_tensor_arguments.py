"""The tensors that ops were called with: shapes, types and strides, from traces recorded with ``record_shapes``."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Container
from typing import Any

import numpy as np

from perfkit.measures.ops._op_arguments import MAX_DIMENSIONS, SIZES, Tensor
from perfkit.measures.ops._op_calls import TENSOR_ARGUMENTS, OpCalls
from perfkit.trace.intervals import Bools, Ints

#: Bytes of a tensor that stays in a processor's first-level cache (32 to 64 KB): below, no traffic is avoided.
SMALL = 64 * 2**10
#: No tensor has more; sums of their bytes fit into 64 bits.
_MAX_ELEMENTS = 2**48


class TensorArgumentReader:
    """The tensors of the calls and of all ops inside them. ``any`` is whether the trace has any."""

    def __init__(self, calls: OpCalls) -> None:
        self._rows = calls.op_rows
        self._row_list = self._rows.tolist()
        self._fields = calls.arguments
        self.any = bool(self._fields and self._fields["Input type"].values)
        codes = (self._fields[name].codes.tolist() for name in TENSOR_ARGUMENTS if self.any)
        self._codes = list(zip(*codes, strict=True))
        self._known: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def mentions(self, rows: Ints, dtypes: Container[str]) -> Bools:
        """Which of these ops, in the order of their rows, have an argument of one of these types."""
        field = self._fields["Input type"]
        has = np.array(
            [
                isinstance(value, list) and any(type(one) is str and one in dtypes for one in value)
                for value in field.values
            ]
        )
        return np.append(has, False)[field.codes[np.searchsorted(self._rows, rows)]]

    def dims(self, row: int) -> list[Any]:
        """The shapes of all arguments of an op, as in the trace; an empty list for an argument that is not a tensor."""
        at = self._codes[bisect_left(self._row_list, row)][0] if self.any else -1
        found = self._fields["Input Dims"].values[at] if at >= 0 else None
        return found if isinstance(found, list) else []

    def __call__(self, row: int) -> tuple[Tensor, ...]:
        """The tensors that an op was called with, in order; none where the trace does not have them."""
        if not self.any:
            return ()
        key = self._codes[bisect_left(self._row_list, row)]
        if key not in self._known:
            fields = zip(TENSOR_ARGUMENTS, key, strict=True)
            self._known[key] = _tensors(*(self._fields[name].values[at] if at >= 0 else None for name, at in fields))
        return self._known[key]


def _tensors(dims: Any, types: Any, strides: Any) -> tuple[Tensor, ...]:
    if not isinstance(dims, list) or not isinstance(types, list):
        return ()
    steps = strides if isinstance(strides, list) and len(strides) == len(dims) else [None] * len(dims)
    found = []
    for shape, dtype, step in zip(dims, types, steps, strict=False):
        if type(dtype) is not str or dtype not in SIZES or not isinstance(shape, list):
            continue
        if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < _MAX_ELEMENTS for n in shape):
            return ()
        if math.prod(shape) >= _MAX_ELEMENTS:
            return ()
        fits = isinstance(step, list) and len(step) == len(shape)
        fits = fits and all(type(n) is int and abs(n) < _MAX_ELEMENTS for n in step)
        found.append(Tensor(tuple(shape), dtype, tuple(step) if fits else None))
    return tuple(found)


def shape_text(shape: tuple[int, ...]) -> str:
    """``8x3x224x224``."""
    return "x".join(str(length) for length in shape)
