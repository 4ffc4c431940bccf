"""Where the host time of a step goes, read from a trace."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures.results import StepBreakdown
from perfkit.run.records import Phases
from perfkit.trace.columns import Kind, Steps, Trace
from perfkit.trace.intervals import Bools, Ints, Union, clip, common, free, joined, union, without

DATA = re.compile(r"enumerate\((?:DataLoader|DataPipe)\)#")
OPTIMIZER = re.compile(r"Optimizer\.step#")
NODE = re.compile(r"autograd::engine::evaluate_function")
#: Backward nodes of traces that have no engine events (torch 1.8): ``AddBackward0`` and its like.
OLD_NODE = re.compile(r"(?:\w+Backward\d*|torch::autograd::AccumulateGrad)$")
TO_DEVICE = re.compile(r"aten::(?:to|_to_copy|copy_)$")
HOST_TO_DEVICE = re.compile(r"Memcpy HtoD")


#: A first step this many times the median is start-up: cuDNN's search, lazy loading of kernels, allocation.
WARM_UP = 3


def whole_steps(trace: Trace) -> Steps:
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
        calls = trace.is_kind(Kind.OP, Kind.RUNTIME) & (trace.track == steps.track[last])
        inside = (trace.start_ns >= steps.start_ns[last]) & (trace.start_ns < steps.end_ns[last])
        kept[last] = bool((calls & inside).any())
    return Steps(*(column[kept] for column in steps))


def _fetches(trace: Trace) -> Ints:
    """Rows of DataLoader fetches on the thread that has most of them, in order of time."""
    rows = trace.ranges
    rows = rows[trace.name_matches(DATA)[rows]]
    if rows.size:
        rows = rows[trace.track[rows] == np.bincount(trace.track[rows]).argmax()]
    return rows[np.argsort(trace.start_ns[rows], kind="stable")]


def _steps_between_fetches(trace: Trace) -> Steps:
    rows = _fetches(trace)
    if rows.size < 4:
        rows = rows[:1]
    starts, ends = trace.start_ns[rows[:-1]], trace.start_ns[rows[1:]]
    steady = ends - starts <= WARM_UP * np.median(ends - starts) if starts.size else np.zeros(0, bool)
    # Only the first steps can be warm-up: a slow one later is a slow step.
    kept = np.maximum.accumulate(steady)
    number = np.arange(starts.size)[kept]
    return Steps(number, starts[kept], ends[kept], trace.track[rows[:-1]][kept], rows[:-1][kept])


def step_of(steps: Steps, times: Ints) -> Ints:
    """Index of the step that each time lies in; -1 for none."""
    if not steps.row.size:
        return np.full(times.shape, -1, np.int64)
    at = np.searchsorted(steps.start_ns, times, side="right") - 1
    inside = (at >= 0) & (times < steps.end_ns[np.maximum(at, 0)])
    return np.where(inside, at, -1)


def backward_nodes(trace: Trace) -> Bools:
    """A mask of the ops that ran one autograd node each."""
    ops = trace.is_kind(Kind.OP)
    nodes = ops & trace.name_matches(NODE)
    return nodes if nodes.any() else ops & trace.name_matches(OLD_NODE)


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
    on_thread = trace.track == steps.track[0]
    data = _union(trace, trace.is_kind(Kind.RANGE) & on_thread & trace.name_matches(DATA))
    optimizer = _union(trace, trace.is_kind(Kind.RANGE) & on_thread & trace.name_matches(OPTIMIZER))
    transfer = _transfers(trace, on_thread)
    nodes = backward_nodes(trace)
    backward = _filled(trace, _union(trace, nodes), nodes, joined(data, optimizer), on_thread)

    totals = dict.fromkeys(("data", "transfer", "forward", "backward", "optimizer"), 0)
    for begin, end in zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True):
        step = Union(np.array([begin]), np.array([end]))
        taken = clip(data, begin, end)
        totals["data"] += taken.length_ns
        for phase, where in (("optimizer", optimizer), ("backward", backward), ("transfer", transfer)):
            mine = without(clip(where, begin, end), taken)
            totals[phase] += mine.length_ns
            taken = joined(taken, mine)
        totals["forward"] += without(_before_backward(step, backward, joined(data, optimizer)), taken).length_ns
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


def _union(trace: Trace, mask: Bools) -> Union:
    return union(trace.start_ns[mask], trace.end_ns[mask])


def _transfers(trace: Trace, on_thread: Bools) -> Union:
    """Top-level ops of the thread that copied from host to device."""
    copies = np.flatnonzero(trace.is_kind(Kind.COPY) & trace.name_matches(HOST_TO_DEVICE))
    launches = trace.launch[copies]
    ops = trace.is_kind(Kind.OP)
    top = ops & (trace.above(ops) < 0)
    copying = trace.above(top)[launches[launches >= 0]]
    wanted = np.zeros(len(trace), bool)
    wanted[copying[copying >= 0]] = True
    return _union(trace, wanted & on_thread & trace.name_matches(TO_DEVICE))


def _filled(trace: Trace, nodes: Union, is_node: Bools, ranges: Union, on_thread: Bools) -> Union:
    """The time the backward took: nodes, and the time between two of them unless the thread did something else.

    Something else = an op that no node called: the next micro-batch's forward, the next step.
    """
    if nodes.starts.size < 2:
        return nodes
    ops = trace.is_kind(Kind.OP)
    foreign = ops & ~is_node & on_thread & (trace.above(ops) < 0)
    marks = np.sort(np.concatenate((trace.start_ns[foreign], ranges.starts)))
    low, high = nodes.ends[:-1], nodes.starts[1:]
    busy = np.searchsorted(marks, high, side="left") > np.searchsorted(marks, low, side="left")
    return joined(nodes, Union(low[~busy], high[~busy]))


def _before_backward(step: Union, backward: Union, others: Union) -> Union:
    """The time of a step that leads to a backward: from the end of what came before it to its start."""
    inside = common(backward, step)
    if not inside.starts.size:
        return Union(step.starts[:0], step.ends[:0])
    rest = free(joined(inside, common(others, step)), int(step.starts[0]), int(step.ends[0]))
    leads = np.isin(rest.ends, inside.starts)
    return Union(rest.starts[leads], rest.ends[leads])
