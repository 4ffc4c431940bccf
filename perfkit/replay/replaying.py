"""Runs a task graph: when each task is over, how long the steps take, and which tasks the last one waited for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.trace.intervals import Ints

Floats = npt.NDArray[np.float64]

#: Before every time: what waits for nothing.
_NEVER = -(2**61)
#: Nodes whose numbers are Python's at the same time: a number takes 32 bytes there, in an array 8.
_CHUNK = 1 << 16


class Lags(NamedTuple):
    """What passes between each node and those before it, and what it takes itself, in ns."""

    before: Ints
    launch: Ints
    wait: Ints
    own: Ints
    #: The wait of each node that still holds; -1 for none.
    waits_for: Ints


class ReplayRun(NamedTuple):
    """The time at which each node is over, in ns since the origin, and when each step is.

    ``over`` and ``step_ends`` are of the steps as they were recorded, one after another. ``rounds_ends`` are the ends
    of their steps when they run again and again, one row for each round, the first one included.
    """

    graph: TaskGraph
    times: TaskTimes
    lags: Lags
    over: Ints
    rounds_ends: Ints

    @property
    def step_ends(self) -> Ints:
        """When each recorded step is over."""
        return np.asarray(self.rounds_ends[0], np.int64)

    @property
    def total_ns(self) -> int:
        """What the recorded steps take together."""
        return int(self.step_ends[-1]) - int(self.over[self.graph.begin])

    @property
    def step_ns(self) -> float:
        """What a step of a training takes that goes on like this: no less than `TaskTimes.floor`."""
        total_ns = int(self.rounds_ends[-1, -1]) - int(self.over[self.graph.begin])
        return max(self.times.floor, total_ns / self.rounds_ends.size)

    @property
    def steps_ns(self) -> Ints:
        """What each recorded step takes, from the end of the one before it to its own."""
        return np.diff(self.step_ends, prepend=self.over[self.graph.begin])

    @property
    def mean_steps_ns(self) -> Floats:
        """What each recorded step takes in the mean over the rounds."""
        ends = self.rounds_ends.reshape(-1)
        lengths = np.diff(ends, prepend=self.over[self.graph.begin]).reshape(self.rounds_ends.shape)
        return np.asarray(lengths.mean(axis=0), np.float64)


def replay(graph: TaskGraph, times: TaskTimes | None = None) -> ReplayRun:
    """Run the graph with these times; by default the recorded ones, which give the recorded steps."""
    times = times if times is not None else graph.recorded
    lags = _lags(graph, times)
    running = _run(graph, lags)
    over = np.array(running[:-1], np.int64)
    ends = [_step_ends(graph, over)]
    ends += _further_rounds(graph, lags, running)
    return ReplayRun(graph, times, lags, over, np.stack(ends))


def _lags(graph: TaskGraph, times: TaskTimes) -> Lags:
    nodes = graph.nodes
    passed = np.concatenate((np.zeros(1, np.int64), np.cumsum(times.host)))
    on_host, on_device = np.flatnonzero(nodes.piece >= 0), np.flatnonzero(nodes.task >= 0)
    before = np.zeros(nodes.piece.size, np.int64)
    follows = on_host[nodes.before[on_host] >= 0]
    before[follows] = passed[nodes.piece[follows]] - passed[nodes.piece[nodes.before[follows]]]
    task = nodes.task[on_device]
    before[on_device] = times.gap[task]
    launch = nodes.fixed.copy()
    launched = on_device[nodes.launch[on_device] > 0]
    launch[launched] += times.latency[nodes.task[launched]]
    own = np.zeros(nodes.piece.size, np.int64)
    own[on_device] = times.unknown[task] + times.work[task]
    edge = nodes.edge
    wait = np.append(times.edge, 0)[edge]
    waits_for = np.where((edge < 0) | np.append(times.holds, True)[edge], nodes.wait, -1)
    return Lags(before, launch, wait, own, waits_for)


def _run(graph: TaskGraph, lags: Lags) -> list[int]:
    """The recursion: a node is over when the last of those before it is and the lag has passed, and its own time.

    Plain numbers in a plain loop: 0.25 µs for a node. A node waits for nodes of other chains, so that numpy would take
    one pass for each time the longest path changes its lane or stream, which is thousands.
    """
    nodes = graph.nodes
    count = nodes.piece.size
    over = [_NEVER] * (count + 1)  # the last one is what -1, for none, finds
    over[0] = 0
    at = 1
    while at < count:
        stop = min(count, at + _CHUNK)
        columns = (nodes.before, lags.before, nodes.launch, lags.launch, lags.waits_for, lags.wait, lags.own)
        rows = zip(*(column[at:stop].tolist() for column in columns), strict=True)
        for node, (before, passed, launch, latency, wait, delay, own) in enumerate(rows, at):
            begin = over[before] + passed
            other = over[launch] + latency
            if other > begin:
                begin = other
            other = over[wait] + delay
            if other > begin:
                begin = other
            over[node] = begin + own
        at = stop
    return over


def _further_rounds(graph: TaskGraph, lags: Lags, over: list[int]) -> list[Ints]:
    """The ends of the steps in the rounds after the first; ``over`` is overwritten by each."""
    window = graph.window
    if window.rounds < 2:
        return []
    node = window.node
    waits_for = np.where(window.waits, lags.waits_for[node], -1)
    follows = (node, window.before, lags.before[node], window.launch, lags.launch[node])
    columns = (*follows, waits_for, lags.wait[node], lags.own[node])
    rows = [*zip(*(column.tolist() for column in columns), strict=True)]
    begin, last, began = graph.begin, int(graph.step_nodes[-1]), over[graph.begin]
    found = []
    for _ in range(1, window.rounds):
        # The loop's lane goes on where the last step ended; what hangs on the origin hangs on that.
        over[0] = over[last] - began
        over[begin] = over[last]
        for at, before, passed, launch, latency, wait, delay, own in rows:
            time = over[before] + passed
            other = over[launch] + latency
            if other > time:
                time = other
            other = over[wait] + delay
            if other > time:
                time = other
            over[at] = time + own
        found.append(_step_ends(graph, np.array(over[:-1], np.int64)))
    return found


def _step_ends(graph: TaskGraph, over: Ints) -> Ints:
    """When each step is over, on the host and with all that it launched."""
    ends = over[graph.step_nodes].copy()
    count = ends.size
    counted = np.flatnonzero((graph.task_step >= 0) & (graph.task_step < count))
    np.maximum.at(ends, graph.task_step[counted], over[graph.nodes.node_of_task[counted]])
    return np.maximum.accumulate(ends)


class PathPart(NamedTuple):
    """A stretch of the critical path: nodes of the same lane or task, in ns since the origin.

    ``piece`` and ``last_piece`` are the pieces of the host from the first to before the last; -1 on a device. ``task``
    is the task of a device, -1 on the host. ``how`` is "host", "work", or what the path waited for: "launch latency",
    "gap", "wait", "unknown".
    """

    starts: int
    ends: int
    how: str
    piece: int = -1
    last_piece: int = -1
    task: int = -1


def critical_path(run: ReplayRun) -> list[PathPart]:
    """The chain of tasks that the last step's end waited for, back to the beginning of the first step, in order."""
    graph, nodes, lags = run.graph, run.graph.nodes, run.lags
    columns = (nodes.task, nodes.piece, nodes.before, nodes.launch, lags.before, lags.launch, lags.waits_for, lags.wait)
    of_task, of_piece, before, launch, passed, latency, waits_for, delay = (column.tolist() for column in columns)
    over = run.over.tolist()
    at, begin = _last_node(run), over[graph.begin]
    parts: list[PathPart] = []
    while at > 0 and over[at] > begin:
        task, time = of_task[at], over[at]
        # The host that goes on from one piece to the next is one stretch.
        source = at
        while source > 0 and of_piece[source] >= 0 and over[source] > begin:
            back = before[source]
            if back < 0 or over[back] + passed[source] != over[source]:
                break
            source = back
        if source != at:
            if over[source] < time:
                parts.append(PathPart(over[source], time, "host", of_piece[source], of_piece[at]))
            at = source
            continue
        if task >= 0:
            unknown = int(run.times.unknown[task])
            started = time - int(lags.own[at])
            parts.append(PathPart(started + unknown, time, "work", task=task))
            if unknown:
                parts.append(PathPart(started, started + unknown, "unknown", task=task))
            time = started
        choices = (
            (passed[at], before[at], "gap"),
            (latency[at], launch[at], "launch latency" if task >= 0 else "host"),
            (delay[at], waits_for[at], "wait"),
        )
        # Of several that end together, the one with the least lag tells most: what it did is known.
        found = [one for one in choices if one[1] >= 0 and over[one[1]] + one[0] == time]
        if not found:
            break
        lag, source, how = min(found)
        if lag:
            parts.append(PathPart(time - lag, time, how, task=task))
        at = source
    return parts[::-1]


def _last_node(run: ReplayRun) -> int:
    """The node that ends the last step."""
    graph, end = run.graph, int(run.step_ends[-1])
    on_host = graph.step_nodes[run.over[graph.step_nodes] == end]
    if on_host.size:
        return int(on_host[-1])
    last = graph.nodes.node_of_task[(graph.task_step >= 0) & (graph.task_step <= graph.last_step)]
    return int(last[run.over[last] == end][-1])
