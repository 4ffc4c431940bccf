"""Rows that are taken by an index of integers, and what adding up their gradients takes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import launched_work, mask_of, nearest_above
from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_arguments import Tensor
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader, shape_text
from perfkit.measures.results.patterns import IndexingGradient
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Ints

#: autograd's node for indexing with tensors.
_NODE = re.compile(r"(?:^|: )IndexBackward\d+$")
_ADDS = frozenset({"aten::index_put_", "aten::_index_put_impl_"})
#: What a mask of booleans is turned into numbers by.
_OF_MASKS = frozenset({"aten::nonzero"})
#: The kernels that add up rows in the order of a sorted index. Where there is none, the index was not sorted.
_AFTER_SORT = "indexing_backward_kernel"


def find_indexing_gradients(
    calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps
) -> Iterator[IndexingGradient]:
    """The rows that ``x[index]`` takes, with the time of adding up their gradients, by line and by shapes."""
    chosen = _additions(calls, inner)
    rows = inner.rows[chosen]
    ns = _sorting_ns(calls, rows) if calls.on_device else _host_ns(calls, rows)
    sums = KeyedSums()
    lines = inner.locations(chosen)
    for row, spent, at in zip(rows.tolist(), ns.tolist(), lines, strict=True):
        tensors = arguments(row)
        if spent and len(tensors) >= 2 and _are_rows(tensors[0], tensors[1], arguments.dims(row)):
            of, added = tensors[:2]
            sums.add((at, of.shape, added.shape[0], of.dtype), ns=float(spent), count=1)
    for (at, shape, taken, dtype), total in sums.per_step(calls.steps):
        columns = math.prod(shape[1:])
        yield IndexingGradient(at=at, shape=shape_text(shape), columns=columns, taken=taken, dtype=dtype, **total)


def _are_rows(of: Tensor, added: Tensor, dims: list[Any]) -> bool:
    """Whether the gradient of ``of`` is made of whole rows, by one index of one dimension.

    Traces of torch do not have the shapes of the indices. Where as many rows were taken as there are, an index of the
    columns (``x[:, index]``) or two indices have the same shapes: such a gradient counts only if they are there.
    """
    if len(of.shape) < 2 or len(added.shape) != len(of.shape) or added.shape[1:] != of.shape[1:]:
        return False
    indices = dims[1] if len(dims) > 1 and isinstance(dims[1], list) else []
    if indices:
        return bool(indices[0] == [added.shape[0]]) and not any(indices[1:])
    return added.shape[0] != of.shape[0]


def _additions(calls: OpCalls, inner: InnerOps) -> Ints:
    """The ops below nodes of indexing that add up gradients, as indices of ``inner``; no masks."""
    trace = calls.trace
    chosen = inner.named(_ADDS)
    is_node = np.array([bool(_NODE.search(name)) for name in calls.names], bool) & calls.is_node
    chosen = chosen[is_node[calls.of[inner.rows[chosen]]]]
    rows = inner.rows[chosen]
    # One of these ops may call the other.
    is_outer = nearest_above(trace, rows, mask_of(trace, rows)) < 0
    masks = calls.of[inner.rows[inner.named(_OF_MASKS)]]
    return chosen[is_outer & ~np.isin(calls.of[rows], masks)]


def _sorting_ns(calls: OpCalls, rows: Ints) -> Ints:
    """Device time of the kernels of each of these ops; 0 where it does not sort the index."""
    trace = calls.trace
    work = launched_work(trace)
    work = work[trace.kind[work] == Kind.KERNEL]
    op = nearest_above(trace, trace.launch[work], mask_of(trace, rows))
    work, place = work[op >= 0], np.searchsorted(rows, op[op >= 0])
    is_sorted = np.array([_AFTER_SORT in name for name in trace.names], bool)[trace.name[work]]
    sorts = np.isin(np.arange(rows.size), place[is_sorted])
    return np.where(sorts, sum_by(place, trace.duration_ns[work], rows.size), 0)


def _host_ns(calls: OpCalls, rows: Ints) -> Ints:
    """Host time of each of these ops: its share of its node, whose time is that of a typical step."""
    duration, node = calls.trace.duration_ns, calls.of[rows]
    return np.rint(calls.cost[node] * (duration[rows] / np.maximum(1, duration[calls.rows[node]]))).astype(np.int64)
