"""Matrix products on a device, by their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfkit._location import Location
from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader
from perfkit.measures.results.patterns import MatmulShape

#: Op -> the place of its first matrix among its tensors.
_MATMULS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


def find_matmuls(calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps) -> Iterator[MatmulShape]:
    """Matrix products by shape and type, with the device time of their kernels."""
    chosen = inner.named(_MATMULS)
    sums = KeyedSums()
    lines: dict[Any, Location | None] = {}
    for i, at in zip(chosen.tolist(), inner.locations(chosen), strict=True):
        row = int(inner.rows[i])
        op = calls.trace.names[calls.trace.name[row]]
        matrices = arguments(row)[_MATMULS[op] :][:2]
        if len(matrices) < 2 or min(len(matrix.shape) for matrix in matrices) < 2:
            continue
        left, right = matrices
        key = (op, left.shape[-2], left.shape[-1], right.shape[-1], left.dtype)
        sums.add(key, ns=float(inner.own[i]), count=1)
        lines[key] = lines.get(key) or at
    for key, total in sums.per_step(calls.steps):
        op, m, k, n, dtype = key
        yield MatmulShape(op=op, m=m, k=k, n=n, dtype=dtype, at=lines[key], **total)
