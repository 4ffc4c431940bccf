"""Loops in Python that call the same few ops again and again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from perfkit.measures._rows import find_rows, launched_work, mask_of, name_codes, nearest_above
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.ops._backward import Backward
from perfkit.measures.results.host import Repeat
from perfkit.measures.steps._closures import after_closures
from perfkit.measures.steps._trace_steps import DATA, OPTIMIZER, main_thread, step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints, union

#: A loop body of more ops than this is a model's layer rather than a loop over small ops.
MAX_PERIOD = 64
#: Fewer iterations cost little, and eight equal neighbours in a row are no coincidence.
MIN_ITERATIONS = 8
#: Maximum of repeats that are listed.
MAX_REPEATS = 20

#: Between two backward nodes of one backward the engine takes 3 µs (mean of 4,000 on one CPU, profiler on); far
#: more is another backward, or a wait.
MAX_HANDOVER_NS = 20_000

#: Loops in here are torch's own (per-parameter optimizers), or their time is the data phase's.
NOT_THE_USERS_LOOP = re.compile(rf"{DATA.pattern}|Optimizer\.")


class _Run(NamedTuple):
    """Rows ``[first, first + period * times)`` of a thread's top-level ops repeat with this period."""

    first: int
    period: int
    times: int


def find_repeats(trace: Trace, is_op: Bools, caller: Ints, backward: Backward) -> tuple[Repeat, ...]:
    """The runs of top-level ops that repeat on the thread of the steps, longest first; equal ones are added up.

    ``is_op`` masks the ops that count, ``caller`` is the op around each.
    """
    steps = whole_steps(trace)
    top = np.flatnonzero(is_op & (caller < 0))
    nodes = backward.is_node
    not_users = mask_of(trace, find_rows(trace, NOT_THE_USERS_LOOP, Kind.RANGE))
    library = nearest_above(trace, top, not_users)
    users = ~nodes[top] & ((library < 0) | _in_closure(trace, top, library))
    if not users.any():
        return ()
    duration = trace.duration_ns
    thread = main_thread(trace, top[users])
    here = trace.track[top] == thread
    top, users = top[here], users[here]
    order = np.argsort(trace.start_ns[top], kind="stable")
    top, users = top[order], users[order]
    # A loop does not continue over a backward, an optimizer or the end of a step: those begin a new group.
    group = np.cumsum(~users)[users] + step_of(steps, trace.start_ns[top[users]]) * (top.size + 1)
    top = top[users]
    runs = find_runs(trace.name[top].astype(np.int64), group)

    bodies: dict[tuple[int, ...], list[_Run]] = defaultdict(list)
    codes = trace.name[top].tolist()
    for run in runs:
        bodies[_rotated(tuple(codes[run.first : run.first + run.period]))].append(run)
    if not runs:
        return ()
    count = max(1, steps.row.size)
    is_users = mask_of(trace, trace.ranges)
    stacks = trace.is_kind(Kind.PYTHON)
    is_frame = PythonFrames(trace, None, ()).is_frame if stacks.any() else stacks
    work = launched_work(trace)
    work = work[trace.track[trace.launch[work]] == thread]
    launched_ns = trace.start_ns[trace.launch[work]]
    repeats = []
    for found in bodies.values():
        # The same loop seen from another op of its body, where the op before it happens to match: the commonest counts.
        views = Counter(tuple(codes[run.first : run.first + run.period]) for run in found)
        (body, _) = views.most_common(1)[0]
        begins = trace.start_ns[top[[run.first for run in found]]]
        ends = trace.end_ns[top[[run.first + run.period * run.times - 1 for run in found]]]
        inside = np.concatenate([np.arange(run.first, run.first + run.period * run.times) for run in found])
        iterations = sum(run.times for run in found)
        repeats.append(
            Repeat(
                names=tuple(trace.names[code] for code in body),
                iterations=iterations / count,
                ops=iterations * len(body) / count,
                host_ns=int((ends - begins).sum()) // count,
                op_ns=int(duration[top[inside]].sum()) // count,
                device_ns=int(duration[work[_within(launched_ns, begins, ends)]].sum()) // count
                if trace.device_rows.size
                else None,
                backward_ns=_backward_time(trace, backward, thread, begins, ends, count),
                range=_usual_name(trace, nearest_above(trace, top[inside], is_users)),
                function=_usual_name(trace, nearest_above(trace, top[inside], is_frame)),
            )
        )
    repeats.sort(key=lambda repeat: -repeat.host_ns)
    return tuple(repeats[:MAX_REPEATS])


def _in_closure(trace: Trace, rows: Ints, library: Ints) -> Bools:
    """Whether each row is in the closure of an optimizer's step; ``library`` is the range around each, -1 for none."""
    updates = find_rows(trace, OPTIMIZER, Kind.RANGE)
    begins = np.zeros(len(trace), np.int64)
    begins[updates] = after_closures(trace, updates)
    return (library >= 0) & (trace.start_ns[rows] < begins[np.maximum(library, 0)])


def find_runs(names: Ints, group: Ints) -> list[_Run]:
    """Disjoint runs of names that repeat; the one that covers most first, then the one with the shortest body."""
    candidates = []
    for period in range(1, min(MAX_PERIOD, names.size // MIN_ITERATIONS) + 1):
        equal = (names[:-period] == names[period:]) & (group[:-period] == group[period:])
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        first, length = edges[::2], edges[1::2] - edges[::2]
        long_enough = length >= (MIN_ITERATIONS - 1) * period
        for begin, more in zip(first[long_enough].tolist(), length[long_enough].tolist(), strict=True):
            candidates.append(_Run(begin, period, (more + period) // period))
    candidates.sort(key=lambda run: (-run.period * run.times, run.period, run.first))
    taken = np.zeros(names.size, bool)
    runs = []
    for run in candidates:
        stop = run.first + run.period * run.times
        if not taken[run.first : stop].any():
            taken[run.first : stop] = True
            runs.append(run)
    return runs


def _rotated(body: tuple[int, ...]) -> tuple[int, ...]:
    """A form of a loop's body that all its rotations share."""
    return min(body[i:] + body[:i] for i in range(len(body)))


def _within(times: Ints, begins: Ints, ends: Ints) -> Bools:
    """Whether each time is in one of these disjoint intervals."""
    order = np.argsort(begins)
    at = np.searchsorted(begins[order], times, side="right") - 1
    return (at >= 0) & (times < ends[order][np.maximum(at, 0)])


def _usual_name(trace: Trace, rows: Ints) -> str | None:
    """The name that most of these rows have; None where most are no row at all."""
    if not rows.size:
        return None
    values, counts = np.unique(name_codes(trace, rows), return_counts=True)
    usual = int(values[counts.argmax()])
    return trace.names[usual] if usual >= 0 else None


def _backward_time(trace: Trace, backward: Backward, thread: int, begins: Ints, ends: Ints, steps: int) -> int | None:
    """Time of the backward nodes of the ops in these intervals, per step."""
    made = trace.track[backward.maker] == thread
    made &= _within(trace.start_ns[backward.maker], begins, ends)
    if not made.any():
        return None
    # The engine's own work for a node (finding it, passing its gradients) is between it and the next one.
    every = np.flatnonzero(backward.is_node)
    every = every[np.lexsort((trace.start_ns[every], trace.track[every]))]
    until = trace.end_ns[every].copy()
    follows = np.flatnonzero(trace.track[every[:-1]] == trace.track[every[1:]])
    gap = trace.start_ns[every[follows + 1]] - until[follows]
    near = follows[(gap > 0) & (gap < MAX_HANDOVER_NS)]
    until[near] = trace.start_ns[every[near + 1]]
    paired = np.isin(every, backward.node[made])
    return union(trace.start_ns[every[paired]], until[paired]).length_ns // steps
