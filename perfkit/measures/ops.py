"""Host ops of a trace: what each costs, what an op costs at least, and loops that call the same few again and again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from perfkit.measures.results import Ops, OpTime, Repeat
from perfkit.measures.steps import DATA, backward_nodes, step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints, union
from perfkit.trace.nesting import find_innermost

#: A loop body of more ops than this is a model's layer rather than a loop over small ops.
LONGEST_PERIOD = 64
#: Fewer iterations cost little, and eight equal neighbours in a row are no accident.
LEAST_ITERATIONS = 8
#: More are never shown.
MOST_REPEATS = 20

#: Between two backward nodes of one backward the engine takes 3 µs (mean of 4,000 on one CPU, profiler on); far
#: more is another backward, or a wait.
LONGEST_HANDOVER_NS = 20_000

#: Loops in here are torch's own (per-parameter optimizers), or their time is the data phase's.
NOT_THE_USERS_LOOP = re.compile(rf"{DATA.pattern}|Optimizer\.")


def measure_ops(trace: Trace) -> Ops | None:
    """Cost of ops by name, over the steps if there are any (a trace without steps counts as one); None without ops.

    ``total_ns`` of an op that calls itself counts the inner call twice; ``self_ns`` never does: all
    self times sum to the time in which any op was open. ``device_ns`` is the sum of the device work launched
    inside an op and the ops it called.
    """
    steps = whole_steps(trace)
    is_op = trace.is_kind(Kind.OP)
    if steps.row.size:
        is_op &= step_of(steps, trace.start_ns) >= 0
    rows = np.flatnonzero(is_op)
    if not rows.size:
        return None
    caller = trace.above(is_op)
    duration = trace.end_ns - trace.start_ns
    own = np.zeros(len(trace), np.int64)
    for code in np.unique(trace.track[rows]):
        mine = rows[trace.track[rows] == code]
        segments = find_innermost(trace.start_ns[mine], trace.end_ns[mine])
        np.add.at(own, mine[segments.owner], segments.ends - segments.starts)
    device = _launched(trace, caller) if trace.device_rows.size else None

    names, place = np.unique(trace.name[rows], return_inverse=True)
    counts = np.bincount(place)
    totals = _sum_by(place, duration[rows])
    owns = _sum_by(place, own[rows])
    devices = _sum_by(place, device[rows]) if device is not None else None
    table = sorted(
        (
            OpTime(
                name=trace.names[code],
                count=int(counts[i]),
                total_ns=int(totals[i]),
                self_ns=int(owns[i]),
                device_ns=int(devices[i]) if devices is not None else None,
            )
            for i, code in enumerate(names.tolist())
        ),
        key=lambda op: -op.self_ns,
    )
    called = caller[rows]
    is_leaf = np.ones(len(trace), bool)
    is_leaf[called[called >= 0]] = False
    floor_ns = int(np.percentile(duration[rows][is_leaf[rows]], 10))
    if steps.row.size:
        wall_ns = int((steps.end_ns - steps.start_ns).sum())
    else:
        wall_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
    return Ops(
        steps=max(1, steps.row.size),
        count=rows.size,
        wall_ns=wall_ns,
        rows=tuple(table),
        # Traces in whole us hold most small ops with no length at all.
        floor_ns=floor_ns or None,
        repeats=_find_repeats(trace, is_op, caller, device is not None),
    )


def _sum_by(place: Ints, values: Ints) -> Ints:
    total = np.zeros(int(place.max()) + 1, np.int64)
    np.add.at(total, place, values)
    return total


def _launched(trace: Trace, caller: Ints) -> Ints:
    """Device time launched inside each op, with what it called."""
    launched = np.zeros(len(trace), np.int64)
    work = trace.device_rows[trace.launch[trace.device_rows] >= 0]
    duration = trace.end_ns[work] - trace.start_ns[work]
    at = caller[trace.launch[work]]
    while (found := at >= 0).any():
        at, duration = at[found], duration[found]
        np.add.at(launched, at, duration)
        at = caller[at]
    return launched


class _Run(NamedTuple):
    """Rows ``[first, first + period * times)`` of a thread's top-level ops repeat with this period."""

    first: int
    period: int
    times: int


def _find_repeats(trace: Trace, is_op: Bools, caller: Ints, has_device: bool) -> tuple[Repeat, ...]:
    steps = whole_steps(trace)
    top = np.flatnonzero(is_op & (caller < 0))
    nodes = backward_nodes(trace)
    ranges = trace.is_kind(Kind.RANGE)
    not_users = ranges & trace.name_matches(NOT_THE_USERS_LOOP)
    users = ~nodes[top] & (trace.above(not_users)[top] < 0)
    if not users.any():
        return ()
    duration = trace.end_ns - trace.start_ns
    if steps.row.size:
        thread = int(steps.track[0])
    else:
        spent = _sum_by(trace.track[top[users]].astype(np.int64), duration[top[users]])
        thread = int(spent.argmax())
    here = trace.track[top] == thread
    top, users = top[here], users[here]
    order = np.argsort(trace.start_ns[top], kind="stable")
    top, users = top[order], users[order]
    # A loop does not go on over a backward, an optimizer or the end of a step: those begin a new group.
    group = np.cumsum(~users)[users] + step_of(steps, trace.start_ns[top[users]]) * (top.size + 1)
    top = top[users]
    runs = _find_runs(trace.name[top].astype(np.int64), group)

    bodies: dict[tuple[int, ...], list[_Run]] = defaultdict(list)
    codes = trace.name[top].tolist()
    for run in runs:
        bodies[_rotated(tuple(codes[run.first : run.first + run.period]))].append(run)
    count = max(1, steps.row.size)
    repeats = []
    for found in bodies.values():
        # The same loop seen from another op of its body, where the op before it happens to fit: the usual view wins.
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
                device_ns=_device_time(trace, thread, begins, ends) // count if has_device else None,
                backward_ns=_backward_time(trace, nodes, thread, begins, ends, count),
            )
        )
    repeats.sort(key=lambda repeat: -repeat.host_ns)
    return tuple(repeats[:MOST_REPEATS])


def _find_runs(names: Ints, group: Ints) -> list[_Run]:
    """Disjoint runs of names that repeat; those that cover most come first, then those with the shortest body."""
    candidates = []
    for period in range(1, min(LONGEST_PERIOD, names.size // LEAST_ITERATIONS) + 1):
        equal = (names[:-period] == names[period:]) & (group[:-period] == group[period:])
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        first, length = edges[::2], edges[1::2] - edges[::2]
        long_enough = length >= (LEAST_ITERATIONS - 1) * period
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
    """The same for every rotation of a loop's body."""
    return min(body[i:] + body[:i] for i in range(len(body)))


def _within(times: Ints, begins: Ints, ends: Ints) -> Bools:
    """Which times lie in one of these disjoint intervals."""
    order = np.argsort(begins)
    at = np.searchsorted(begins[order], times, side="right") - 1
    return (at >= 0) & (times < ends[order][np.maximum(at, 0)])


def _device_time(trace: Trace, thread: int, begins: Ints, ends: Ints) -> int:
    work = trace.device_rows[trace.launch[trace.device_rows] >= 0]
    launch = trace.launch[work]
    inside = (trace.track[launch] == thread) & _within(trace.start_ns[launch], begins, ends)
    return int((trace.end_ns - trace.start_ns)[work[inside]].sum())


def _backward_time(trace: Trace, nodes: Bools, thread: int, begins: Ints, ends: Ints, steps: int) -> int | None:
    """Time of the backward nodes of the ops in these intervals, by autograd's sequence numbers.

    An op that makes no node carries the number of the node that comes next. So a number belongs to the
    forward op that began last with it.
    """
    numbered = trace.is_kind(Kind.OP) & (trace.sequence >= 0)
    in_backward = nodes | (trace.above(nodes) >= 0)
    forward = np.flatnonzero(numbered & ~in_backward & (trace.track == thread))
    node = np.flatnonzero(numbered & nodes)
    if not forward.size or not node.size:
        return None
    forward = forward[np.lexsort((trace.start_ns[forward], trace.sequence[forward]))]
    last = np.append(trace.sequence[forward[1:]] != trace.sequence[forward[:-1]], True)
    forward = forward[last]
    mine = trace.sequence[forward[_within(trace.start_ns[forward], begins, ends)]]
    if not np.isin(trace.sequence[node], mine).any():
        return None
    # The engine's own work for a node (finding it, handing over its gradients) lies between it and the next one.
    every = np.flatnonzero(nodes)
    every = every[np.lexsort((trace.start_ns[every], trace.track[every]))]
    until = trace.end_ns[every].copy()
    follows = np.flatnonzero(trace.track[every[:-1]] == trace.track[every[1:]])
    gap = trace.start_ns[every[follows + 1]] - until[follows]
    near = follows[(gap > 0) & (gap < LONGEST_HANDOVER_NS)]
    until[near] = trace.start_ns[every[near + 1]]
    paired = np.isin(trace.sequence[every], mine) & (trace.sequence[every] >= 0)
    return union(trace.start_ns[every[paired]], until[paired]).length_ns // steps
