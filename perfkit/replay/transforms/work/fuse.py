"""A run of small ops becomes one: one launch, and on a device one kernel that reads and writes its data once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import mask_of
from perfkit.measures.device._idle import CODE
from perfkit.measures.device._kernel_classes import PRODUCTS, class_of
from perfkit.measures.ops._op_kinds import op_kind
from perfkit.replay._fused_times import OP_OVERHEAD_NS
from perfkit.replay._selection import active, below, forward_ops, matching_rows, owner_rows
from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.trace.columns import HOST_KINDS, Kind, Trace
from perfkit.trace.intervals import Bools, Ints

NAME = "fuse"
TAKES = "pattern"

#: Kernels that are not fused with others: products, and what other libraries run.
_APART = (*PRODUCTS, "communication", "optimizer", "copy")
#: Ops of a host that are not.
_APART_ON_HOST = ("matmul", "convolution", "attention")


def describe(pattern: str) -> str:
    """The change in words."""
    return f"{pattern} fused"


class Runs(NamedTuple):
    """Ops that become one: the run of each of these pieces and tasks, -1 for none; of ``number`` runs."""

    pieces: Ints
    tasks: Ints
    number: int


def change(graph: TaskGraph, times: TaskTimes, pattern: str, interference: bool) -> None:
    """Each run becomes one op and, on a device, one kernel per stretch that no product or collective parts.

    The fused kernel takes as long as the longest of the run, since it is limited by the same bytes; with interference
    as long as all, and Python stays. On a CPU products stay, the longest of the others, and the Python around one op;
    with interference only the others' overhead and the Python around them go. Where the limits of the machine are
    known, an op that stays takes what its data takes (`FusedTimes`).
    """
    runs = _runs(graph, pattern)
    ops = np.isin(graph.lanes.cause, [CODE[cause] for cause in ("operators", "launch call", "optimizer")])
    if runs.tasks.max(initial=-1) >= 0:
        _fuse_kernels(graph, times, runs, ops, interference)
    else:
        _fuse_host(graph, times, runs, interference)


def applies(graph: TaskGraph) -> bool:
    """Whether the trace has ops."""
    return bool(graph.trace.is_kind(Kind.OP).any())


def _runs(graph: TaskGraph, pattern: str) -> Runs:
    """The runs of a pattern: each range or module that matches, and ops in a row that match."""
    trace, owner, tasks = graph.trace, owner_rows(graph), graph.tasks
    rows = matching_rows(trace, pattern)
    host = rows & trace.is_kind(*HOST_KINDS)
    outer = np.flatnonzero(host & (trace.above(host) < 0))
    run_of_row = np.full(len(trace), -1, np.int64)
    run_of_row[outer] = _consecutive(graph, outer)
    is_outer = mask_of(trace, outer)
    above = trace.above(is_outer)
    run_of_row = np.where(is_outer, run_of_row, np.where(above >= 0, run_of_row[above], -1))
    if (rows & trace.is_kind(Kind.RANGE, Kind.PYTHON)).any():
        _add_backward(trace, run_of_row)
    steps, found = active(graph), below(graph, rows)
    pieces = np.where(steps.pieces & found.pieces & (owner >= 0), run_of_row[owner], -1)
    in_task = np.where(steps.tasks & (tasks.launch >= 0), run_of_row[tasks.launch], -1)
    return Runs(pieces, _stretches(graph, in_task), int(run_of_row.max(initial=-1)) + 1)


def _add_backward(trace: Trace, run_of_row: Ints) -> None:
    """The backward of each run is a run too: one op has one node, however many it replaces."""
    number = int(run_of_row.max(initial=-1)) + 1
    nodes, forward = forward_ops(trace)
    mine = run_of_row[forward] >= 0
    nodes, forward = nodes[mine], forward[mine]
    run_of_row[nodes] = number + run_of_row[forward]
    above = trace.above(mask_of(trace, nodes))
    inside = np.flatnonzero(above >= 0)
    run_of_row[inside] = run_of_row[above[inside]]


def _consecutive(graph: TaskGraph, outer: Ints) -> Ints:
    """The run of each of these rows: ops between which no other op of their thread ran belong together."""
    trace = graph.trace
    is_op = trace.is_kind(Kind.OP)
    tops = np.flatnonzero(is_op & (trace.above(is_op) < 0)) if is_op.any() else np.zeros(0, np.int64)
    tops = tops[np.lexsort((trace.start_ns[tops], trace.track[tops]))]
    place = np.full(len(trace), -2, np.int64)
    place[tops] = np.arange(tops.size)
    order = outer[np.lexsort((trace.start_ns[outer], trace.track[outer]))]
    follows = (place[order[1:]] == place[order[:-1]] + 1) & (place[order[:-1]] >= 0)
    number = np.concatenate((np.zeros(1, np.int64), np.cumsum(~follows)))
    found = np.empty(len(trace), np.int64)
    found[order] = number[: order.size]
    return found[outer]


def _stretches(graph: TaskGraph, run: Ints) -> Ints:
    """The tasks of each run, parted where something runs on their stream that cannot be fused: -1 for all others."""
    trace, tasks = graph.trace, graph.tasks
    if not tasks.size:
        return np.zeros(0, np.int64)
    names = np.unique(trace.name[tasks.row[run >= 0]]).tolist()
    apart = np.zeros(len(trace.names), bool)
    apart[[code for code in names if class_of(trace.names[code]) in _APART]] = True
    fits = (run >= 0) & (trace.kind[tasks.row] == int(Kind.KERNEL)) & ~apart[trace.name[tasks.row]]
    order = np.lexsort((tasks.starts, tasks.queue))
    new = np.append(True, (run[order][1:] != run[order][:-1]) | (tasks.queue[order][1:] != tasks.queue[order][:-1]))
    new |= ~fits[order] | np.append(True, ~fits[order][:-1])
    found = np.full(tasks.size, -1, np.int64)
    found[order] = np.cumsum(new) - 1
    found[~fits] = -1
    return found


def _fuse_kernels(graph: TaskGraph, times: TaskTimes, runs: Runs, ops: Bools, interference: bool) -> None:
    tasks = graph.tasks
    mine = np.flatnonzero(runs.tasks >= 0)
    _, stretch, size = np.unique(runs.tasks[mine], return_inverse=True, return_counts=True)
    stretch = stretch.reshape(-1)
    order = np.lexsort((-times.work[mine], stretch))
    longest = np.zeros(mine.size, bool)
    longest[order[np.append(True, np.diff(stretch[order]) > 0)]] = True
    gone = mine[~longest & (size[stretch] > 1)]
    times.gap[gone] = 0
    if not interference:
        times.work[gone] = 0
    # The host makes as many launches fewer as kernels are gone.
    run_of_launch = np.append(_run_of_launches(graph, runs), -1)
    lost = np.bincount(run_of_launch[gone][run_of_launch[gone] >= 0], minlength=runs.number)
    launched = run_of_launch[np.flatnonzero(tasks.launch >= 0)]
    made = np.bincount(launched[launched >= 0], minlength=runs.number)
    left = 1 - lost / np.maximum(made, 1)
    pieces = np.flatnonzero((runs.pieces >= 0) & (ops if interference else True))
    times.host[pieces] = np.rint(times.host[pieces] * left[runs.pieces[pieces]]).astype(np.int64)


def _run_of_launches(graph: TaskGraph, runs: Runs) -> Ints:
    """The run in which each task was launched, -1 for none."""
    owner, tasks = owner_rows(graph), graph.tasks
    run_of_row = np.full(len(graph.trace), -1, np.int64)
    mine = np.flatnonzero((runs.pieces >= 0) & (owner >= 0))
    run_of_row[owner[mine]] = runs.pieces[mine]
    return np.where(tasks.launch >= 0, run_of_row[tasks.launch], -1)


def _fuse_host(graph: TaskGraph, times: TaskTimes, runs: Runs, interference: bool) -> None:
    trace, lanes = graph.trace, graph.lanes
    is_op = trace.is_kind(Kind.OP)
    in_op = (lanes.row >= 0) & (is_op | (trace.above(is_op) >= 0))[lanes.row]
    mine = np.flatnonzero((runs.pieces >= 0) & in_op)
    if not mine.size:
        return
    # The time of each op that another op did not call, with all that it called.
    top = np.where(trace.above(is_op) >= 0, trace.above(is_op), np.arange(len(trace)))
    while (higher := trace.above(is_op)[top]).max(initial=-1) >= 0:
        top = np.where(higher >= 0, higher, top)
    op, place = np.unique(top[lanes.row[mine]], return_inverse=True)
    place = place.reshape(-1)
    spent = sum_by(place, times.host[mine], op.size)
    run = np.zeros(op.size, np.int64)
    run[place] = runs.pieces[mine]
    is_product = np.array([op_kind(name) in _APART_ON_HOST for name in trace.names])[trace.name[lanes.row[mine]]]
    apart = np.zeros(op.size, bool)
    apart[place[is_product]] = True
    least, most = spent, np.maximum(0, spent - OP_OVERHEAD_NS)
    if (fused := times.fused) is not None:
        apart[place[fused.apart[mine]]] = True
        least, most = (sum_by(place, remains[mine], op.size) for remains in (fused.least, fused.most))
    order = np.lexsort((-least, run))
    order = order[~apart[order]]
    longest = np.zeros(op.size, bool)
    longest[order[np.append(True, np.diff(run[order]) > 0)[: order.size]]] = True
    one = OP_OVERHEAD_NS if fused is not None or interference else 0
    if interference:
        remains = np.where(longest, most + one, most)
    else:
        of_longest = np.minimum(least, _undisturbed(run, least, trace.start_ns[op])) + one
        remains = np.where(apart, least, np.where(longest, of_longest, 0))
    left = np.minimum(remains, spent) / np.maximum(spent, 1)
    times.host[mine] = np.rint(times.host[mine] * left[place]).astype(np.int64)
    # Python around the removed ops is removed too: one op is left of each run.
    ops = np.maximum(np.bincount(run, minlength=runs.number), 1)
    around = np.flatnonzero((runs.pieces >= 0) & ~in_op)
    python = np.rint(times.host[around] / ops[runs.pieces[around]])
    if fused is not None:
        python = np.where(fused.apart[around], (fused.most if interference else fused.least)[around], python)
    times.host[around] = python.astype(np.int64)


def _undisturbed(run: Ints, spent: Ints, started: Ints) -> Ints:
    """For each op what the longest op of its run takes where nothing else runs on the machine.

    Steps repeat a run. Whatever else runs makes some of its ops longer, which are others in each step: the shortest of
    the times at one place is the op's own. One that took the processor's next turn away is 1,000 times as long.
    """
    order = np.lexsort((started, run))
    counts = np.bincount(run)
    found = np.zeros(counts.size, np.int64)
    ends = np.cumsum(counts)
    for size in np.unique(counts[counts > 0]).tolist():
        alike = np.flatnonzero(counts == size)
        at = (ends[alike] - size)[:, None] + np.arange(size)
        found[alike] = spent[order[at]].min(axis=0).max()
    return found[run]
