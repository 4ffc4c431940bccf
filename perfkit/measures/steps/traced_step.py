"""Where the host time of a trace's steps goes."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._rows import find_rows, nearest_above, outermost_above, time_of
from perfkit.measures.results.steps import TracedStep
from perfkit.measures.steps._trace_steps import DATA, OPTIMIZER, backward_nodes, fetches, whole_steps
from perfkit.run.records import Phases
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, Union, common, free, joined, without

TO_DEVICE = re.compile(r"aten::(?:to|_to_copy|copy_)$")
HOST_TO_DEVICE = re.compile(r"Memcpy HtoD")


def measure_traced_step(trace: Trace) -> TracedStep | None:
    """Host time per phase of the trace's steps (see `whole_steps`); None where it has none.

    A phase is None where the trace does not show it: data without DataLoader ranges, backward (and with it
    forward) without autograd nodes, transfer without top-level copies that copy from host to device.
    ``other`` is the rest, so that the phases sum to the wall time exactly.
    """
    steps = whole_steps(trace)
    n = steps.row.size
    if not n:
        return None
    walls = steps.end_ns - steps.start_ns
    thread = int(steps.track[0])

    def on_thread(rows: Ints) -> Union:
        return time_of(trace, rows[trace.track[rows] == thread])

    data = on_thread(find_rows(trace, DATA, Kind.RANGE))
    optimizer = on_thread(find_rows(trace, OPTIMIZER, Kind.RANGE))
    transfer = on_thread(_transfers(trace))
    backward = _backward(trace, thread, joined(data, optimizer))

    inside = Union(steps.start_ns, steps.end_ns)
    left = inside
    wall_ns = int(walls.sum()) // n
    phases: dict[str, int | None] = {}
    # Exclusive: the time of one phase is not there for the next.
    for phase, of in (("data", data), ("optimizer", optimizer), ("backward", backward), ("transfer", transfer)):
        phases[phase] = common(left, of).length_ns // n if of.starts.size else None
        left = without(left, of)
    if backward.starts.size:
        forward = _before_backward(inside, backward, joined(data, optimizer))
        phases["forward"] = common(left, forward).length_ns // n
    phases["other"] = wall_ns - sum(ns for ns in phases.values() if ns is not None)
    marked = trace.steps.row.size
    left_out = marked - n if marked else fetches(trace).size - 1 - n
    reason = "empty, or of another thread" if marked else "warm-up"
    marks = "ProfilerStep ranges" if marked else "DataLoader fetches, since it has no ProfilerStep ranges,"
    return TracedStep(
        steps=n,
        wall_ns=wall_ns,
        median_ns=int(np.percentile(walls, 50)),
        p10_ns=int(np.percentile(walls, 10)),
        p90_ns=int(np.percentile(walls, 90)),
        phases_ns=Phases(**phases),
        source=f"{marks} in {trace.path.name}",
        excluded={reason: left_out} if left_out else {},
    )


def _transfers(trace: Trace) -> Ints:
    """Top-level ops that copied from host to device."""
    launches = trace.launch[find_rows(trace, HOST_TO_DEVICE, Kind.COPY)]
    copying = np.unique(outermost_above(trace, launches[launches >= 0], trace.is_kind(Kind.OP)))
    return np.intersect1d(copying, find_rows(trace, TO_DEVICE, Kind.OP))


def _backward(trace: Trace, thread: int, ranges: Union) -> Union:
    """The time the backward took: nodes, and the time between two of them unless the thread did something else.

    Something else is an op that no node called: the next micro-batch's forward, the next step.
    """
    is_node = backward_nodes(trace)
    nodes = time_of(trace, np.flatnonzero(is_node))
    if nodes.starts.size < 2:
        return nodes
    low, high = nodes.ends[:-1], nodes.starts[1:]
    is_op = trace.is_kind(Kind.OP)
    ops = np.flatnonzero(is_op & ~is_node & (trace.track == thread))
    # Only what begins between two nodes can part them.
    at = np.searchsorted(nodes.starts, trace.start_ns[ops], side="right") - 1
    ops = ops[(at >= 0) & (trace.start_ns[ops] >= nodes.ends[np.maximum(at, 0)])]
    foreign = ops[nearest_above(trace, ops, is_op) < 0]
    marks = np.sort(np.concatenate((trace.start_ns[foreign], ranges.starts)))
    busy = np.searchsorted(marks, high, side="left") > np.searchsorted(marks, low, side="left")
    return joined(nodes, Union(low[~busy], high[~busy]))


def _before_backward(steps: Union, backward: Union, others: Union) -> Union:
    """The time of each step that leads to a backward in it, from the end of what came before."""
    rest = common(steps, free(joined(backward, others), int(steps.starts[0]), int(steps.ends[-1])))
    leads = np.isin(rest.ends, backward.starts) & ~np.isin(rest.ends, steps.ends)
    return Union(rest.starts[leads], rest.ends[leads])
