"""Where the host time of a step goes, read from a trace."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._rows import find_rows, mask_of, nearest_above, outermost_above
from perfkit.measures._trace_cache import once
from perfkit.measures.results.steps import StepBreakdown
from perfkit.run.records import Phases
from perfkit.trace.columns import Kind, ProfilerSteps, Trace
from perfkit.trace.intervals import Bools, Ints, Union, common, free, joined, union, without

DATA = re.compile(r"enumerate\((?:DataLoader|DataPipe)\)#")
OPTIMIZER = re.compile(r"Optimizer\.step#")
NODE = re.compile(r"autograd::engine::evaluate_function")
#: Backward nodes of traces that have no engine events (torch 1.8): ``AddBackward0`` and its like.
#: From a word's beginning only: at each letter of a long name again, it would take the square of its length.
OLD_NODE = re.compile(r"(?:\b\w+Backward\d*|torch::autograd::AccumulateGrad)$")
TO_DEVICE = re.compile(r"aten::(?:to|_to_copy|copy_)$")
HOST_TO_DEVICE = re.compile(r"Memcpy HtoD")


#: A first step this many times the median is start-up: cuDNN's search, lazy loading of kernels, allocation.
WARM_UP = 3


@once
def whole_steps(trace: Trace) -> ProfilerSteps:
    """The steps of the main loop that can be measured.

    ``ProfilerStep`` ranges, without a last one in which nothing ran: torch.profiler opens a step when it
    ends one, so a profile that stops after its last ``step()`` leaves one of some microseconds behind.
    In a trace without them (a profile whose loop never called ``step()``) a step reaches from one
    DataLoader fetch to the next, from four fetches on, and without warm-up. Where several threads hold steps,
    the one with the most counts.
    """
    steps = trace.steps
    if not steps.row.size:
        return _steps_between_fetches(trace)
    kept = steps.track == np.bincount(steps.track).argmax()
    last = int(np.flatnonzero(kept)[-1])
    if kept.sum() > 1:
        # Ranges count too: nsys on a machine without CUDA records nothing else.
        calls = trace.is_kind(Kind.OP, Kind.RUNTIME, Kind.RANGE) & (trace.track == steps.track[last])
        calls[steps.row] = False
        inside = (trace.start_ns >= steps.start_ns[last]) & (trace.start_ns < steps.end_ns[last])
        kept[last] = bool((calls & inside).any())
    return ProfilerSteps(*(column[kept] for column in steps))


def _fetches(trace: Trace) -> Ints:
    """Rows of DataLoader fetches on the thread that has most of them, in order of time."""
    rows = trace.ranges
    rows = rows[trace.name_matches(DATA)[rows]]
    if rows.size:
        rows = rows[trace.track[rows] == np.bincount(trace.track[rows]).argmax()]
    return rows[np.argsort(trace.start_ns[rows], kind="stable")]


def _steps_between_fetches(trace: Trace) -> ProfilerSteps:
    rows = _fetches(trace)
    if rows.size < 4:
        rows = rows[:1]
    starts, ends = trace.start_ns[rows[:-1]], trace.start_ns[rows[1:]]
    steady = ends - starts <= WARM_UP * np.median(ends - starts) if starts.size else np.zeros(0, bool)
    # Only the first steps can be warm-up: a slow one later is a slow step.
    kept = np.maximum.accumulate(steady)
    number = np.arange(starts.size)[kept]
    return ProfilerSteps(number, starts[kept], ends[kept], trace.track[rows[:-1]][kept], rows[:-1][kept])


def step_of(steps: ProfilerSteps, times: Ints) -> Ints:
    """Index of the step that each time lies in; -1 for none."""
    if not steps.row.size:
        return np.full(times.shape, -1, np.int64)
    at = np.searchsorted(steps.start_ns, times, side="right")
    at -= 1
    # What is in no step, -1, finds the last end.
    ends = np.append(steps.end_ns, np.iinfo(np.int64).min)
    at[times >= ends[at]] = -1
    return at


@once
def steps_of_ops(trace: Trace) -> tuple[Ints, Ints]:
    """Rows of all ops, and the index of the step that each began in, -1 for none; a trace without steps is one."""
    rows = np.flatnonzero(trace.is_kind(Kind.OP))
    steps = whole_steps(trace)
    return rows, step_of(steps, trace.start_ns[rows]) if steps.row.size else np.zeros(rows.size, np.int64)


@once
def backward_nodes(trace: Trace) -> Bools:
    """A mask of the ops that ran one autograd node each."""
    nodes = find_rows(trace, NODE, Kind.OP)
    return mask_of(trace, nodes if nodes.size else find_rows(trace, OLD_NODE, Kind.OP))


def measure_trace_steps(trace: Trace) -> StepBreakdown | None:
    """Host time per phase of the trace's steps (see `whole_steps`); None where it has none.

    A phase is None where the trace cannot tell it: data without DataLoader ranges, backward (and with it
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
        return _union(trace, rows[trace.track[rows] == thread])

    data = on_thread(find_rows(trace, DATA, Kind.RANGE))
    optimizer = on_thread(find_rows(trace, OPTIMIZER, Kind.RANGE))
    transfer = on_thread(_transfers(trace))
    backward = _backward(trace, thread, joined(data, optimizer))

    inside = Union(steps.start_ns, steps.end_ns)
    left = inside
    totals = {}
    # Exclusive: what one phase has taken is not there for the next.
    for phase, where in (("data", data), ("optimizer", optimizer), ("backward", backward), ("transfer", transfer)):
        totals[phase] = common(left, where).length_ns
        left = without(left, where)
    totals["forward"] = common(left, _before_backward(inside, backward, joined(data, optimizer))).length_ns
    known = {
        "data": bool(data.starts.size),
        "transfer": bool(transfer.starts.size),
        "forward": bool(backward.starts.size),
        "backward": bool(backward.starts.size),
        "optimizer": bool(optimizer.starts.size),
    }
    wall_ns = int(walls.sum()) // n
    phases: dict[str, int | None] = {phase: total // n if known[phase] else None for phase, total in totals.items()}
    phases["other"] = wall_ns - sum(ns for ns in phases.values() if ns is not None)
    marked = trace.steps.row.size
    left_out = marked - n if marked else _fetches(trace).size - 1 - n
    reason = "empty, or of another thread" if marked else "warm-up"
    marks = "ProfilerStep ranges" if marked else "DataLoader fetches, since it has no ProfilerStep ranges,"
    return StepBreakdown(
        steps=n,
        wall_ns=wall_ns,
        median_ns=int(np.percentile(walls, 50)),
        p10_ns=int(np.percentile(walls, 10)),
        p90_ns=int(np.percentile(walls, 90)),
        phases_ns=Phases(**phases),
        source=f"{marks} in {trace.path.name}",
        excluded={reason: left_out} if left_out else {},
    )


def _union(trace: Trace, rows: Ints) -> Union:
    return union(trace.start_ns[rows], trace.end_ns[rows])


def _transfers(trace: Trace) -> Ints:
    """Top-level ops that copied from host to device."""
    launches = trace.launch[find_rows(trace, HOST_TO_DEVICE, Kind.COPY)]
    copying = np.unique(outermost_above(trace, launches[launches >= 0], trace.is_kind(Kind.OP)))
    return np.intersect1d(copying, find_rows(trace, TO_DEVICE, Kind.OP))


def _backward(trace: Trace, thread: int, ranges: Union) -> Union:
    """The time the backward took: nodes, and the time between two of them unless the thread did something else.

    Something else = an op that no node called: the next micro-batch's forward, the next step.
    """
    is_node = backward_nodes(trace)
    nodes = _union(trace, np.flatnonzero(is_node))
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
    if not backward.starts.size:
        return backward
    rest = common(steps, free(joined(backward, others), int(steps.starts[0]), int(steps.ends[-1])))
    leads = np.isin(rest.ends, backward.starts) & ~np.isin(rest.ends, steps.ends)
    return Union(rest.starts[leads], rest.ends[leads])
