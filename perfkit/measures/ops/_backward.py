"""Which forward op made each node of the backward, by autograd's sequence numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.measures._rows import nearest_above
from perfkit.measures._trace_cache import once
from perfkit.measures.steps._trace_steps import backward_nodes
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints


class Backward(NamedTuple):
    """The backward nodes of a trace that could be paired, and all of them.

    ``maker[i]`` is the row of the forward op that made the node in row ``node[i]``. ``is_node`` is a mask of all
    nodes: those that accumulate gradients, for one, have no number and no maker.
    """

    node: Ints
    maker: Ints
    is_node: Bools


@once
def pair_backward(trace: Trace) -> Backward:
    """Pair nodes with the forward ops that made them, whatever threads both ran on.

    An op that makes no node carries the number of the node that comes next, so a number belongs to the forward op
    that began last with it. Numbers are counted per thread: one that several threads used is not paired, and ops
    inside a node (what checkpointing computes again) make no pair, since their time is in that node already.
    """
    nodes = backward_nodes(trace)
    numbered = trace.is_kind(Kind.OP) & (trace.sequence >= 0)
    made = np.flatnonzero(numbered & nodes)
    forward = np.flatnonzero(numbered & ~nodes)
    if forward.size and made.size:
        forward = forward[nearest_above(trace, forward, nodes) < 0]
    if not forward.size or not made.size:
        none = np.zeros(0, np.int64)
        return Backward(none, none, nodes)
    forward = forward[np.lexsort((trace.start_ns[forward], trace.sequence[forward]))]
    number = trace.sequence[forward]
    same = number[1:] == number[:-1]
    last = forward[np.append(~same, True)]
    shared = np.unique(number[1:][same & (trace.track[forward[1:]] != trace.track[forward[:-1]])])
    at = np.minimum(np.searchsorted(trace.sequence[last], trace.sequence[made]), last.size - 1)
    maker = last[at]
    known = (trace.sequence[maker] == trace.sequence[made]) & (trace.start_ns[maker] <= trace.start_ns[made])
    known &= ~np.isin(trace.sequence[made], shared)
    return Backward(made[known], maker[known], nodes)
