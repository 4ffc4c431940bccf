"""Where an optimizer's step begins to update, if a closure that it was given runs in it first."""

from __future__ import annotations

import numpy as np

from perfkit.measures._rows import find_rows
from perfkit.measures.steps._trace_steps import NODE
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints


def after_closures(trace: Trace, rows: Ints) -> Ints:
    """When each optimizer step begins to update: after the last backward of a closure that it was given, in ns.

    Lightning's steps have a closure that does the whole training step, LBFGS calls one several times; without one it is
    the range's own start.
    """
    begins = trace.start_ns[rows].copy()
    if not rows.size:
        return begins
    nodes = find_rows(trace, NODE, Kind.RANGE, Kind.OP)
    order = np.argsort(begins, kind="stable")
    at = np.searchsorted(begins[order], trace.start_ns[nodes], "right") - 1
    update = order[np.maximum(at, 0)]
    inside = (at >= 0) & (trace.end_ns[nodes] <= trace.end_ns[rows][update])
    np.maximum.at(begins, update[inside], trace.end_ns[nodes][inside])
    return begins
