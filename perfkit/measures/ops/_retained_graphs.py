"""Graphs that are gone through more than once: ``backward(retain_graph=True)``, and then another backward."""

from __future__ import annotations

from collections import Counter

import numpy as np

from perfkit._location import Location
from perfkit.measures._rows import nearest_above
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.results.patterns import RetainedGraph
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools


def find_retained_graph(calls: OpCalls) -> RetainedGraph | None:
    """The nodes that ran again, by the forward op that made each; None without any.

    An op makes one node per number, and a node that is gone through again has its number again. A gradient that is
    differentiated itself goes through the graph a second time by its nature: what makes nodes while it runs is left
    out with all other runs of that node.
    """
    backward = pair_backward(calls.trace)
    index = np.full(len(calls.trace), -1, np.int64)
    index[calls.rows] = np.arange(calls.rows.size)
    known = index[backward.node] >= 0
    rows, maker = backward.node[known], backward.maker[known]
    left_out = np.unique(maker[_makes_nodes(calls.trace, backward.is_node)[rows]])
    kept = ~np.isin(maker, left_out)
    node, maker = index[rows[kept]], maker[kept]
    order = np.lexsort((node, maker))
    node, maker = node[order], maker[order]
    again = np.append(False, maker[1:] == maker[:-1]) if maker.size else np.zeros(0, bool)
    if not again.any():
        return None
    cost = calls.cost[node[again]]
    by_place = Counter[Location | None]()
    for at, ns in zip(calls.locations(node[again]), cost.tolist(), strict=True):
        by_place[at] += ns
    return RetainedGraph(
        count=float(again.sum()) / calls.steps,
        ns=int(cost.sum()) // calls.steps,
        at=by_place.most_common(1)[0][0],
        share=int(cost.sum()) / max(1, int(calls.cost[calls.is_node].sum())),
        most=int(np.unique(maker, return_counts=True)[1].max()),
    )


def _makes_nodes(trace: Trace, is_node: Bools) -> Bools:
    """A mask of the nodes inside of which ops make nodes: those have a number of their own."""
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.sequence >= 0) & ~is_node)
    node = nearest_above(trace, ops, is_node)
    inside = node >= 0
    ops, node = ops[inside], node[inside]
    makes = np.zeros(len(trace), bool)
    makes[node[trace.sequence[ops] != trace.sequence[node]]] = True
    return makes
