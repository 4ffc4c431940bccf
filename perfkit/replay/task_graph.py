"""A trace as a graph of tasks: pieces of host time, device work, and what each waits for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from perfkit.measures._rows import find_rows
from perfkit.measures._trace_cache import once
from perfkit.measures.device._device_work import GRAPH_LAUNCH
from perfkit.measures.device._idle import BACK_TO_BACK_NS
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.replay._device_tasks import (
    EVENT_DELAY_NS,
    STAGED_NS,
    DeviceTasks,
    Edges,
    HostWaits,
    find_coinciding,
    find_event_edges,
    find_syncs,
    find_tasks,
    stream_order,
)
from perfkit.replay._host_lanes import HostLanes, find_lanes
from perfkit.replay._node_order import Before, Nodes, TaskWaits, order_nodes
from perfkit.replay._rounds import StepsWindow, window_of
from perfkit.trace.columns import Kind, ProfilerSteps, Trace
from perfkit.trace.intervals import Bools, Ints

#: What a launch takes from its call to its kernel on an idle device, and the time between two kernels of a stream,
#: where a trace shows neither: medians of the shared traces are 5 to 9 and 1 to 2 µs.
LATENCY_NS, GAP_NS = 6_000, 1_200
#: What a sync call takes that has nothing to wait for, where the trace has none.
SYNC_CALL_NS = 3_000
#: A start later than this after all that is known to be before it depends on something unknown: HTA's limit.
UNKNOWN_NS = 1_500_000
LONG_AGO = np.iinfo(np.int64).min // 4


class FusedTimes(NamedTuple):
    """What remains of each piece of `HostLanes` once its op is fused with others, at least and at most, in ns.

    ``apart``: it remains whatever the op is fused with.
    """

    least: Ints
    most: Ints
    apart: Bools


@dataclass
class TaskTimes:
    """How long tasks take and which waits hold: what a what-if changes. Times in ns, one entry per task.

    ``host`` is of the pieces of `HostLanes`. Of the device's tasks: ``work`` is how long each runs, ``latency`` from
    its launch to its start, ``gap`` from the end of the one before it on its stream, ``unknown`` a delay for which the
    trace has no cause. ``edge`` is of `TaskGraph.waits`, from an end to what waits for it, while it ``holds``.
    ``floor`` is the least that a step takes, whatever the tasks take. ``fused`` is what remains of ops that are fused;
    None: that is not known.
    """

    host: Ints
    work: Ints
    latency: Ints
    gap: Ints
    unknown: Ints
    edge: Ints
    holds: Bools
    floor: float = 0.0
    fused: FusedTimes | None = None

    def copy(self) -> TaskTimes:
        """Times that can be changed without changing these."""
        changed = self.__dataclass_fields__.keys() - {"floor", "fused"}
        columns = {name: getattr(self, name).copy() for name in changed}
        return replace(self, **columns)


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """The tasks of a trace. All arrays are shared by those who replay it: change `TaskTimes`, not these.

    ``origin`` is the trace's first instant, from which replayed times count. ``step_nodes`` are the nodes at which the
    host ends each step, ``begin`` that of the first step's beginning; without steps the whole recording is one, from
    the first launch on where there is any. ``piece_step``, ``task_step`` and ``wait_step`` are the step of each, -1 for
    what was before the first one (which a what-if leaves as it is).
    """

    trace: Trace
    lanes: HostLanes
    tasks: DeviceTasks
    waits: TaskWaits
    nodes: Nodes
    steps: ProfilerSteps
    step_nodes: Ints
    begin: int
    piece_step: Ints
    task_step: Ints
    wait_step: Ints
    origin: int
    recorded: TaskTimes
    window: StepsWindow
    unknown: dict[str, int]

    @property
    def count(self) -> int:
        """The number of tasks, of hosts and devices."""
        return int(self.lanes.starts.size) + self.tasks.size

    @property
    def on_device(self) -> bool:
        """Whether the trace has device work."""
        return self.tasks.size > 0

    @property
    def last_step(self) -> int:
        """Index of the last step."""
        return max(1, self.steps.row.size) - 1


@once
def task_graph(trace: Trace) -> TaskGraph:
    """The task graph of a trace."""
    lanes, tasks = find_lanes(trace), find_tasks(trace)
    before, more = stream_order(trace, tasks)
    anchor = _anchors(trace, lanes, tasks, before)
    events = _both(find_event_edges(trace, tasks), more)
    delays = _delays(lanes, tasks, anchor, before, events)
    doubtful = np.flatnonzero(delays.residual > EVENT_DELAY_NS)
    if doubtful.size and (coinciding := find_coinciding(tasks, doubtful)).source.size:
        events = _both(events, coinciding)
        delays = _delays(lanes, tasks, anchor, before, events)
    host, waits, wait_ns = _host_times(trace, lanes, tasks, find_syncs(trace, tasks))
    waits = _with_events(waits, events)
    steps = whole_steps(trace)
    origin = int(min(lanes.starts.min(), tasks.starts.min() if tasks.size else lanes.starts.min()))
    marks = _step_marks(lanes, tasks, anchor, steps)
    task_step = _step_indices(steps, tasks.launched_at, int(lanes.starts[marks[0]]))
    task_step[_launched_before(tasks)] = -1
    nodes = order_nodes(lanes, tasks, Before(before, anchor), waits, marks, origin)
    recorded = TaskTimes(
        host=host,
        work=tasks.ends - tasks.starts,
        latency=delays.latency,
        gap=delays.gap,
        unknown=delays.unknown,
        edge=np.concatenate((wait_ns, delays.event)),
        holds=nodes.usable,
    )
    return TaskGraph(
        trace=trace,
        lanes=lanes,
        tasks=tasks,
        waits=waits,
        nodes=nodes,
        steps=steps,
        step_nodes=nodes.of_piece(marks)[1:],
        begin=int(nodes.of_piece(marks)[0]),
        piece_step=_step_indices(steps, lanes.starts, int(lanes.starts[marks[0]])),
        task_step=task_step,
        wait_step=_step_indices(steps, trace.start_ns[waits.row], int(lanes.starts[marks[0]])),
        origin=origin,
        recorded=recorded,
        window=_window(lanes, tasks, nodes, marks, task_step, max(1, steps.row.size)),
        unknown=_unknown(trace, tasks, delays),
    )


def _window(
    lanes: HostLanes, tasks: DeviceTasks, nodes: Nodes, marks: Ints, task_step: Ints, steps: int
) -> StepsWindow:
    """The nodes of the steps: those of all lanes by their time, those of devices by that of their launch."""
    size = nodes.piece.size
    inside, chain = np.zeros(size, bool), np.full(size, -1, np.int64)
    low, high = int(lanes.starts[marks[0]]), int(lanes.starts[marks[-1]])
    on_host = np.flatnonzero(nodes.piece >= 0)
    piece = nodes.piece[on_host]
    chain[on_host] = np.searchsorted(lanes.first, piece, side="right") - 1
    of_loop = chain[on_host] == 0
    starts = lanes.starts[piece]
    inside[on_host] = np.where(of_loop, (piece > marks[0]) & (piece <= marks[-1]), (starts > low) & (starts <= high))
    on_device = np.flatnonzero(nodes.task >= 0)
    task = nodes.task[on_device]
    chain[on_device] = lanes.size + tasks.queue[task]
    inside[on_device] = (task_step[task] >= 0) & (task_step[task] < steps)
    # A join is where what waits for it is.
    joins = np.flatnonzero((nodes.piece < 0) & (nodes.task < 0))
    real = np.flatnonzero((nodes.piece >= 0) | (nodes.task >= 0))
    after = np.searchsorted(real, joins)
    inside[joins] = (joins > 0) & inside[real[np.minimum(after, real.size - 1)]]
    # The first step's beginning is set by each round; what follows it on its lane follows it there.
    inside[nodes.of_piece(marks[:1])] = True
    found = window_of(nodes, inside, chain, steps)
    kept = found.node != nodes.of_piece(marks[:1])[0]
    return StepsWindow(found.node[kept], found.before[kept], found.launch[kept], found.waits[kept], found.rounds)


def _step_marks(lanes: HostLanes, tasks: DeviceTasks, anchor: Ints, steps: ProfilerSteps) -> Ints:
    """The pieces of lane 0 at which the first step begins and each ends.

    Without steps those of the first and last launch, as the window of a device is measured; else of the whole lane.
    """
    if not steps.row.size:
        launched = anchor[(anchor >= 0) & (anchor < lanes.first[1])]
        return np.array([launched.min(), launched.max()]) if launched.size else np.array([0, lanes.first[1] - 1])
    times = np.append(steps.start_ns[:1], steps.end_ns)
    return lanes.boundary(np.zeros(times.size, np.int64), times)


def _step_indices(steps: ProfilerSteps, times: Ints, begin: int) -> Ints:
    """The step of each time: -1 before the first one, their number after the last one has ended."""
    if not steps.row.size:
        return np.where(times >= begin, 0, -1)
    found = np.searchsorted(steps.start_ns, times, side="right") - 1
    found[times >= steps.end_ns[-1]] = steps.row.size
    return np.asarray(found, np.int64)


def _launched_before(tasks: DeviceTasks) -> Bools:
    """Tasks without a launch in the trace before the first of their stream that has one.

    Where the device is behind the host, a recording begins with what was launched before it.
    """
    linked = tasks.launch >= 0
    first = np.full(int(tasks.queue.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    order = np.flatnonzero(linked)[::-1]
    first[tasks.queue[order]] = tasks.starts[order]  # the last one written stays, which is the first in time
    return np.asarray(~linked & (tasks.starts < first[tasks.queue]), bool)


def _unknown(trace: Trace, tasks: DeviceTasks, delays: _Delays) -> dict[str, int]:
    """How much of the device's work depends on something that the trace does not show, by what that is."""
    graphs = find_rows(trace, GRAPH_LAUNCH, Kind.RUNTIME)
    unseen = np.setdiff1d(graphs, tasks.launch[tasks.is_graph]).size
    return {
        "without a launch in the trace": int((tasks.launch < 0).sum()),
        "delayed by something that is not in the trace": int((delays.unknown > 0).sum()),
        "graphs without recorded work": unseen,
    }


def _both(one: Edges, other: Edges) -> Edges:
    return Edges(np.append(one.source, other.source), np.append(one.target, other.target))


def _anchors(trace: Trace, lanes: HostLanes, tasks: DeviceTasks, before: Ints) -> Ints:
    """The piece of the host at whose beginning each task is launched; -1 where nothing shows.

    What has no launch in the trace and does not simply follow the work before it is taken as launched by the loop's
    thread just before it began.
    """
    found = np.full(tasks.size, -1, np.int64)
    linked = np.flatnonzero(tasks.launch >= 0)
    lane = lanes.lane_of_track[trace.track[tasks.launch[linked]]]
    found[linked] = lanes.boundary(lane, trace.start_ns[tasks.launch[linked]])
    follows = (before >= 0) & (tasks.starts - tasks.ends[before] <= BACK_TO_BACK_NS)
    alone = np.flatnonzero((tasks.launch < 0) & ~follows)
    at = np.searchsorted(lanes.starts[: lanes.first[1]], tasks.starts[alone] - LATENCY_NS, side="right") - 1
    found[alone] = np.where(lanes.first[1] > 1, at, -1)
    # A clock may be some µs ahead of the other one.
    found[(found >= 0) & (lanes.starts[found] > tasks.starts)] = -1
    return found


class _Delays(NamedTuple):
    latency: Ints
    gap: Ints
    event: Ints
    unknown: Ints
    residual: Ints


def _delays(lanes: HostLanes, tasks: DeviceTasks, anchor: Ints, before: Ints, events: Edges) -> _Delays:
    """What passes between a task and each that it waits for, so that the last one gives the recorded start.

    What is not the last to arrive has a delay that is usual in this trace, since its own is not visible.
    """
    starts, ends = tasks.starts, tasks.ends
    launched = np.where(anchor >= 0, lanes.starts[anchor], LONG_AGO)
    ended = np.where(before >= 0, ends[before], LONG_AGO)
    latency, gap = starts - launched, starts - ended
    idle = (anchor >= 0) & (ended <= launched) & (latency <= UNKNOWN_NS)
    usual_latency = int(np.median(latency[idle])) if idle.any() else LATENCY_NS
    queued = (before >= 0) & (launched < ended) & (gap >= 0) & (gap <= BACK_TO_BACK_NS)
    usual_gap = int(np.median(gap[queued])) if queued.any() else GAP_NS
    latency, gap = np.minimum(latency, usual_latency), np.minimum(gap, usual_gap)
    event = np.minimum(starts[events.target] - ends[events.source], 2 * usual_gap)
    by_launch, by_stream = launched + latency, ended + gap
    by_event = np.full(tasks.size, LONG_AGO)
    np.maximum.at(by_event, events.target, ends[events.source] + event)
    known = np.maximum(np.maximum(by_launch, by_stream), by_event)
    none = known <= LONG_AGO // 2
    residual = np.where(none, 0, starts - known)
    small = np.where(residual <= UNKNOWN_NS, residual, 0)
    last = by_launch >= known
    latency = np.where(last, latency + small, latency)
    stream = ~last & (by_stream >= known)
    gap = np.where(stream, gap + small, gap)
    of_event = ~last & ~stream
    event = np.where(
        of_event[events.target] & (ends[events.source] + event >= known[events.target]),
        event + small[events.target],
        event,
    )
    return _Delays(
        np.where(anchor >= 0, latency, 0),
        np.where(before >= 0, gap, 0),
        event,
        np.where(residual > UNKNOWN_NS, residual, 0),
        residual,
    )


def _host_times(trace: Trace, lanes: HostLanes, tasks: DeviceTasks, syncs: HostWaits) -> tuple[Ints, TaskWaits, Ints]:
    """The time of each piece without what it waits for, the waits, and what passes from the end of each source."""
    host = lanes.ends - lanes.starts
    host[lanes.is_break] = 0
    lane = lanes.lane_of_track[trace.track[syncs.row]]
    kept = lane >= 0
    row, source, is_copy, lane = syncs.row[kept], syncs.source[kept], syncs.is_copy[kept], lane[kept]
    first, piece = lanes.boundary(lane, trace.start_ns[row]), lanes.boundary(lane, trace.end_ns[row])
    kept = (piece > first) & (lanes.starts[piece] >= tasks.ends[source] - np.where(is_copy, STAGED_NS, 0))
    row, source, is_copy = row[kept], source[kept], is_copy[kept]
    first, piece = first[kept], piece[kept]
    tail, length = lanes.starts[piece] - tasks.ends[source], lanes.starts[piece] - lanes.starts[first]
    waited = np.zeros(len(trace), bool)
    waited[row[tail < length]] = True
    is_waiting = waited[row]
    free = length[~is_waiting]
    call_ns = int(np.median(free)) if free.size else SYNC_CALL_NS
    usual_tail = int(np.percentile(tail[tail < length], 25).clip(0)) if is_waiting.any() else SYNC_CALL_NS
    # Of several that a call waits for, only the last one shows what passes until the call returns.
    last = np.full(len(trace), -1, np.int64)
    np.maximum.at(last, row, tasks.ends[source])
    shows = (tail < length) & (tasks.ends[source] == last[row])
    tail = np.where(shows, tail, np.minimum(tail, usual_tail))
    # A call that waited took itself only what such calls take without a wait; its inner pieces are part of it.
    for begin, end, ns in zip(
        first[is_waiting].tolist(), piece[is_waiting].tolist(), length[is_waiting].tolist(), strict=True
    ):
        host[begin:end] = 0
        host[begin] = min(call_ns, ns)
    none = np.full(row.size, -1, np.int64)
    return host, TaskWaits(source, row, none, piece, is_copy), tail


def _with_events(waits: TaskWaits, events: Edges) -> TaskWaits:
    none = np.full(events.source.size, -1, np.int64)
    return TaskWaits(
        np.append(waits.source, events.source),
        np.append(waits.row, none),
        np.append(waits.task, events.target),
        np.append(waits.piece, none),
        np.append(waits.is_copy, np.zeros(none.size, bool)),
    )
