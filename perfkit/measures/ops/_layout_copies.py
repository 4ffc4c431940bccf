"""Copies of tensors to another memory layout."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._op_names import named
from perfkit.measures.ops._op_work import SIZES
from perfkit.measures.ops._tensor_arguments import SMALL, TensorArgumentReader, TensorArguments, shape_text
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
        if tensors is None or not _changes_layout(tensors):
            continue
        size = math.prod(tensors.shapes[0]) * SIZES[tensors.dtypes[0]]
        if size >= SMALL:
            chosen.append(at)
            shapes.append(shape_text(tensors.shapes[0]))
            sizes.append(size)
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


def _changes_layout(copy: TensorArguments) -> bool:
    """Whether the copy's two tensors have one shape and type, and another innermost dimension in memory."""
    if len(copy.shapes) < 2 or copy.shapes[0] != copy.shapes[1] or copy.dtypes[0] != copy.dtypes[1]:
        return False
    one, other = copy.strides[0], copy.strides[1]
    if one is None or other is None:
        return False
    long = [i for i, length in enumerate(copy.shapes[0]) if length > 1]
    if len(long) < 2 or any(one[i] == 0 or other[i] == 0 for i in long):
        return False
    return min(long, key=lambda i: one[i]) != min(long, key=lambda i: other[i])
