"""Which steps of a trace are measured, which step an event lies in, and the events that mark phases."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import find_rows, mask_of
from perfkit.measures._trace_cache import once
from perfkit.trace.columns import Kind, ProfilerSteps, Trace
from perfkit.trace.intervals import Bools, Ints

DATA = re.compile(r"enumerate\((?:DataLoader|DataPipe)\)#")
OPTIMIZER = re.compile(r"Optimizer\.step#")
NODE = re.compile(r"autograd::engine::evaluate_function")
#: Backward nodes of traces that have no engine events (torch 1.8): ``AddBackward0`` and its like.
#: From a word's beginning only: at each letter of a long name again, it would take the square of its length.
OLD_NODE = re.compile(r"(?:\b\w+Backward\d*|torch::autograd::AccumulateGrad)$")

#: A first step this many times the median is start-up: cuDNN's search, lazy loading of kernels, allocation.
WARM_UP = 3


@once
def whole_steps(trace: Trace) -> ProfilerSteps:
    """The steps of the main loop that can be measured.

    ``ProfilerStep`` ranges, without a last one in which nothing ran: torch.profiler opens a step when it
    ends one, so a profile that stops after its last ``step()`` ends with one of some microseconds.
    In a trace without them (a profile whose loop never called ``step()``) a step reaches from one
    DataLoader fetch to the next, where there are at least four fetches, and without warm-up. Where several threads
    have steps, those of the thread with most of them count.
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


def fetches(trace: Trace) -> Ints:
    """Rows of DataLoader fetches on the thread that has most of them, in order of time."""
    rows = trace.ranges
    rows = rows[trace.name_matches(DATA)[rows]]
    if rows.size:
        rows = rows[trace.track[rows] == np.bincount(trace.track[rows]).argmax()]
    return rows[np.argsort(trace.start_ns[rows], kind="stable")]


def _steps_between_fetches(trace: Trace) -> ProfilerSteps:
    rows = fetches(trace)
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
def in_steps(trace: Trace) -> Bools:
    """A mask of the rows that began in a step; all rows of a trace without steps. Device work: see `DeviceWork`."""
    steps = whole_steps(trace)
    return step_of(steps, trace.start_ns) >= 0 if steps.row.size else np.ones(len(trace), bool)


def main_thread(trace: Trace, rows: Ints) -> int:
    """The thread of the steps; without steps the one with most time in these rows, -1 without rows."""
    steps = whole_steps(trace)
    if steps.row.size:
        return int(steps.track[0])
    spent = sum_by(trace.track[rows], trace.duration_ns[rows], len(trace.tracks))
    return int(spent.argmax()) if rows.size else -1


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
