"""When a trace's steps are in which phase, on the thread that trains."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._rows import find_rows, nearest_above, outermost_above, time_of
from perfkit.measures._trace_cache import once
from perfkit.measures.steps._closures import after_closures
from perfkit.measures.steps._trace_steps import DATA, OPTIMIZER, backward_nodes, whole_steps
from perfkit.run.records import Phase
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, Union, common, covered_before, free, joined, union, without

TO_DEVICE = re.compile(r"aten::(?:to|_to_copy|copy_)$")
HOST_TO_DEVICE = re.compile(r"Memcpy HtoD")


@once
def phase_times(trace: Trace) -> dict[Phase, Union]:
    """The time of each phase inside the steps (see `whole_steps`), exclusive; without "other", which is the rest.

    A phase is missing where the trace does not show it: data without DataLoader ranges, backward (and with it
    forward) without autograd nodes, transfer without top-level copies that copy from host to device.
    """
    steps = whole_steps(trace)
    if not steps.row.size:
        return {}
    thread = int(steps.track[0])

    def on_thread(rows: Ints) -> Union:
        return time_of(trace, rows[trace.track[rows] == thread])

    data = on_thread(find_rows(trace, DATA, Kind.RANGE))
    updates = find_rows(trace, OPTIMIZER, Kind.RANGE)
    updates = updates[trace.track[updates] == thread]
    # The closure of an optimizer is a forward and a backward.
    optimizer = union(after_closures(trace, updates), trace.end_ns[updates])
    backward = _backward(trace, thread, joined(data, optimizer))
    recorded: dict[Phase, Union] = {"data": data, "optimizer": optimizer, "backward": backward}
    recorded["transfer"] = on_thread(_transfers(trace))
    inside = left = Union(steps.start_ns, steps.end_ns)
    found: dict[Phase, Union] = {}
    # Exclusive: the time of one phase is not there for the next.
    for phase, of in recorded.items():
        if of.starts.size:
            found[phase] = common(left, of)
        left = without(left, of)
    if backward.starts.size:
        leads = _before_backward(inside, backward, joined(data, optimizer))
        found["forward"] = common(left, _from_first_op(trace, thread, inside, leads))
    return found


def phases_at(trace: Trace, times: Ints) -> list[Phase]:
    """The phase of the step at each of these times; "other" where it is in none."""
    at: list[Phase] = ["other"] * times.size
    for phase, of in phase_times(trace).items():
        inside = covered_before(of, times + 1) > covered_before(of, times)
        for place in np.flatnonzero(inside).tolist():
            at[place] = phase
    return at


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


def _from_first_op(trace: Trace, thread: int, steps: Union, forward: Union) -> Union:
    """The forward, in each step from its first op on: what comes before is the program's own Python."""
    rows = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.track == thread))
    if not rows.size or not forward.starts.size:
        return forward
    ops = np.sort(trace.start_ns[rows])
    first = ops[np.minimum(np.searchsorted(ops, forward.starts), ops.size - 1)]
    of_step = np.searchsorted(steps.starts, forward.starts, side="right")
    opens = np.diff(of_step, prepend=-1) > 0
    inside = opens & (first > forward.starts) & (first < forward.ends)
    return Union(np.where(inside, first, forward.starts), forward.ends)
