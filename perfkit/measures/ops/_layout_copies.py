"""Copies of tensors to another memory layout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_arguments import Tensor
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._op_names import named
from perfkit.measures.ops._tensor_arguments import SMALL, TensorArgumentReader, shape_text
from perfkit.measures.results.patterns import LayoutCopies

#: What a user writes to get another layout; an op that copies inside itself is not the user's conversion.
EXPLICIT = named("contiguous clone reshape flatten to copy_ _to_copy")


def find_layout_copies(calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps) -> Iterator[LayoutCopies]:
    """Copies between tensors of one type whose innermost dimension in memory differs."""
    chosen, shapes, sizes = [], [], []
    for at in inner.named(("aten::copy_",)).tolist():
        row = int(inner.rows[at])
        if not inner.in_node[at] and calls.names[int(calls.of[row])] not in EXPLICIT:
            continue
        tensors = arguments(row)
        if len(tensors) >= 2 and tensors[0].bytes >= SMALL and _changes_layout(*tensors[:2]):
            chosen.append(at)
            shapes.append(shape_text(tensors[0].shape))
            sizes.append(tensors[0].bytes)
    copies = np.array(chosen, np.int64)
    locations = inner.locations(copies)
    # A backward also copies gradients that come in another layout where nobody converted anything.
    converted = {at for at, in_node in zip(locations, inner.in_node[copies].tolist(), strict=True) if not in_node}
    sums = KeyedSums()
    for i, place in enumerate(locations):
        if place in converted:
            sums.add((place, shapes[i]), ns=float(inner.own[copies[i]]), bytes=sizes[i], count=1)
    for (place, shape), total in sums.per_step(calls.steps):
        yield LayoutCopies(op="aten::copy_", shape=shape, at=place, **total)


def _changes_layout(target: Tensor, source: Tensor) -> bool:
    """Whether two tensors have one shape and type, and another innermost dimension in memory."""
    one, other = target.strides, source.strides
    if target.shape != source.shape or target.dtype != source.dtype or one is None or other is None:
        return False
    long = [i for i, length in enumerate(target.shape) if length > 1]
    if len(long) < 2 or any(one[i] == 0 or other[i] == 0 for i in long):
        return False
    return min(long, key=lambda i: one[i]) != min(long, key=lambda i: other[i])
