"""Why a device was idle: what the host, a stream or a graph was doing at that instant.

If the work that ends an idle interval was launched before the interval began, the host was ahead and the device
waited for itself: for another stream, a collective, a graph, or something that traces do not record. If not, the host
was late: until the launch the interval belongs to whatever the launching thread was in, piece by piece, and from the
launch on to launch latency.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, get_args

import numpy as np

from perfkit.measures._rows import find_rows, mask_of
from perfkit.measures._trace_cache import once
from perfkit.measures.device._device_work import GRAPH_LAUNCH, DeviceWork, communicates, device_work
from perfkit.measures.device._first_use import is_first_use, loading_time, loads_code, prepares
from perfkit.measures.device._recompiling import recompiles
from perfkit.measures.host._blocking_calls import wait_times
from perfkit.measures.host.os_calls import os_calls
from perfkit.measures.results.device import LATE_LAUNCHES, IdleCause
from perfkit.measures.steps._trace_steps import backward_nodes, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints, Union, common, covered_before, expand, free, union, without
from perfkit.trace.nesting import find_innermost, nearest_ancestor, overlap

#: Two queued kernels with less between them ran back to back: scheduling one takes some microseconds.
BACK_TO_BACK_NS = 10_000
#: Before every event.
LONG_AGO = np.iinfo(np.int64).min

#: Calls and device records that make a stream wait for another one.
WAIT_CALL = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")
WAIT_RECORD = re.compile(r"^Stream Wait Event$")

#: What the host does in an event whose name matches, or in one that it contains. Tried in this order.
HOST_CAUSES: dict[IdleCause, str] = {
    "sync": r"^(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize|^(?:cuda|hip)EventQuery|^hipMemcpyWithStream"
    r"|^(?:cudaMemcpy|hipMemcpy|aten::(?:item|_local_scalar_dense|nonzero|is_nonzero))$",
    "allocation": r"^(?:cuda|hip|cu)(?:Malloc|Free|HostAlloc|HostRegister"
    r"|Mem(?:AllocHost|Alloc|Free|Create|Map|Unmap|HostAlloc))",
    "data loading": r"enumerate\((?:DataLoader|DataPipe)\)|dataloader\.py\(\d+\): __next__|_next_data|pin_memory",
    "copy call": r"^(?:cuda|hip|cu)Mem(?:cpy|set)",
    "launch call": r"^(?:cuda|hip|cu)\w*?(?:Launch(?:Cooperative)?Kernel|GraphLaunch|ModuleLaunch|ExtLaunch)",
    "communication call": r"^nccl|c10d::|ProcessGroup",
    "optimizer": r"^Optimizer\.",
}

CAUSES: tuple[IdleCause, ...] = get_args(IdleCause)
CODE = {cause: code for code, cause in enumerate(CAUSES)}
LATE = np.array([CODE[cause] for cause in LATE_LAUNCHES])
#: What the host does itself: an op or a launch that takes far longer the first time does it once.
HOST_WORK = np.array([CODE[cause] for cause in ("operators", "launch call", "other host work")])


class Host:
    """What the threads of a trace were doing, as far as it explains idle time: the same for every device."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        overhead = trace.is_kind(Kind.OVERHEAD)
        self.loading = loading_time(trace)
        self.profiler = without(union(trace.start_ns[overhead], trace.end_ns[overhead]), self.loading)
        self._is_first_use, self._prepares = is_first_use(trace), prepares(trace)
        nodes = np.flatnonzero(np.bincount(trace.track[backward_nodes(trace)], minlength=len(trace.tracks)))
        steps = whole_steps(trace)
        if steps.row.size:
            self.main = int(steps.track[0])
        else:
            launch = trace.launch[trace.device_rows]
            busiest = np.bincount(trace.track[launch[launch >= 0]], minlength=len(trace.tracks))
            busiest[nodes] = 0
            self.main = int(busiest.argmax())
        #: Threads of the autograd engine: between two backwards they wait for the main thread to start one.
        self.workers = frozenset(nodes.tolist()) - {self.main}
        graphs = find_rows(trace, GRAPH_LAUNCH, Kind.RUNTIME)
        self.is_graph = mask_of(trace, graphs)
        launch = trace.launch[trace.device_rows]
        seen = mask_of(trace, launch[launch >= 0])
        #: When graphs were launched whose work is not in the trace.
        self.unrecorded_graphs = np.sort(trace.start_ns[graphs[~seen[graphs]]])
        self._rows: dict[int, Ints] = {}
        self._cause_of_name = np.full(len(trace.names), -1, np.int64)
        for code, name in enumerate(trace.names):
            found = (CODE[cause] for cause, pattern in HOST_CAUSES.items() if re.search(pattern, name))
            self._cause_of_name[code] = next(found, -1)
        self._is_os_call = os_calls(trace)
        self._cause_of_kind = np.full(max(Kind) + 1, CODE["other host work"], np.int64)
        self._cause_of_kind[Kind.OP] = CODE["operators"]
        # In a range and in nothing else the host runs Python, also where the trace has no stacks.
        self._cause_of_kind[[Kind.PYTHON, Kind.RANGE]] = CODE["python"]

    def rows_of(self, track: int) -> Ints:
        """Rows of the events of one thread."""
        if track not in self._rows:
            rows = self.trace.host_rows
            self._rows[track] = rows[self.trace.track[rows] == track]
        return self._rows[track]

    def causes(self, rows: Ints) -> Ints:
        """For each host event the cause that its time is charged to while it is innermost.

        That of its own name, or of the nearest event above it whose name has one; what is above any of
        these rows must be among them.
        """
        trace = self.trace
        place = np.full(len(trace), -1, np.int64)
        place[rows] = np.arange(rows.size)
        own = self._cause_of_name[trace.name[rows]]
        parent = trace.parent[rows]
        parent = np.where(parent >= 0, place[parent], -1)
        above = nearest_ancestor(own >= 0, parent)
        cause = np.where((own >= 0) | (above < 0), own, own[above])
        kind = trace.kind[rows]
        plain = self._cause_of_kind[kind]
        # Calls that an op makes are its own work: events recorded, properties asked for.
        in_op = (kind == Kind.RUNTIME) & (parent >= 0) & (kind[np.maximum(parent, 0)] == Kind.OP)
        plain[in_op] = CODE["operators"]
        plain[self._is_os_call[rows]] = CODE["OS call"]
        # A step shows only that the loop ran: in it and in nothing else means that nothing was recorded.
        plain[np.isin(rows, trace.steps.row)] = CODE["uninstrumented"]
        cause = np.where(cause >= 0, cause, plain)
        first, slow = self._is_first_use[rows], self._prepares[rows]
        first |= nearest_ancestor(first, parent) >= 0
        slow |= nearest_ancestor(slow, parent) >= 0
        first |= slow & np.isin(cause, HOST_WORK)
        return np.where(first, CODE["first use"], cause)


class Pieces(NamedTuple):
    """Idle time by cause: ``[starts, ends)`` of idle interval ``interval``, spent in event ``row`` (-1: none)."""

    interval: Ints
    cause: Ints
    starts: Ints
    ends: Ints
    row: Ints


class Idle(NamedTuple):
    """Idle intervals, the row of the work that ended each (-1: the window did), and their time by cause.

    ``by_step[c, s]`` is the time in step s with cause ``CAUSES[c]``; it sums to the intervals' length exactly.
    """

    intervals: Union
    ended_by: Ints
    pieces: Pieces
    by_step: Ints


@once
def idle_of_devices(trace: Trace) -> tuple[Idle, ...]:
    """The idle time of each device that worked, in the order of `device_work`."""
    works = device_work(trace)
    host = Host(trace) if works else None
    return tuple(_charged(trace, work, host) for work in works if host is not None)


def _charged(trace: Trace, work: DeviceWork, host: Host) -> Idle:
    intervals = free(work.busy, work.low, work.high)
    around = _around(trace, work, intervals)
    parts = list(_cut(trace, intervals, around, _waited_itself(trace, work, intervals, around, host), host))
    # The profiler's own time is not the program's, and code is loaded once: taken out of the causes they interrupt.
    pieces = _carved(_joined(parts), host.loading, CODE["first use"])
    pieces = _carved(pieces, host.profiler, CODE["profiler"])
    pieces = _of_syncs(trace, work, _of_recompiling(trace, work, pieces))
    return Idle(intervals, around.after, pieces, _by_step(pieces, work.bounds))


class _Around(NamedTuple):
    """For each idle interval the work that ended when it began, and that which ended it; -1 for none.

    ``sibling`` is the work before ``after`` on the stream of ``after``; ``launched`` is when the last launch was made
    of all whose work had ended.
    """

    before: Ints
    after: Ints
    sibling: Ints
    launched: Ints


def _around(trace: Trace, work: DeviceWork, idle: Union) -> _Around:
    rows = work.everything[trace.end_ns[work.everything] > trace.start_ns[work.everything]]
    none = np.full(idle.starts.size, -1, np.int64)
    if not rows.size:
        return _Around(none, none, none, np.full(none.size, LONG_AGO))
    starts = trace.start_ns[rows]
    at = np.minimum(np.searchsorted(starts, idle.ends, side="left"), rows.size - 1)
    ended = starts[at] == idle.ends
    by_stream = np.argsort(trace.stream[rows], kind="stable")
    earlier = np.full(rows.size, -1, np.int64)
    same = trace.stream[rows[by_stream[1:]]] == trace.stream[rows[by_stream[:-1]]]
    earlier[by_stream[1:][same]] = rows[by_stream[:-1][same]]
    by_end = rows[np.argsort(trace.end_ns[rows], kind="stable")]
    last = np.searchsorted(trace.end_ns[by_end], idle.starts, side="right") - 1
    return _Around(
        np.where(last >= 0, by_end[np.maximum(last, 0)], -1),
        np.where(ended, rows[at], -1),
        np.where(ended, earlier[at], -1),
        np.where(last >= 0, np.maximum.accumulate(_launched(trace, by_end))[np.maximum(last, 0)], LONG_AGO),
    )


def _launched(trace: Trace, rows: Ints) -> Ints:
    """When each row of device work was launched; far in the past where that is not in the trace."""
    launch = np.where(rows >= 0, trace.launch[rows], -1)
    return np.where(launch >= 0, trace.start_ns[launch], LONG_AGO)


def _waited_itself(trace: Trace, work: DeviceWork, idle: Union, around: _Around, host: Host) -> Ints:
    """The cause of each interval in which the device waited for itself; -1 where the host was late."""
    begin, end = idle.starts, idle.ends
    before, after = around.before, around.after
    cause = np.full(begin.size, -1, np.int64)
    launch = np.where(after >= 0, trace.launch[after], -1)
    launched = _launched(trace, after)
    cause[(after >= 0) & (launch < 0)] = CODE["no launch in the trace"]
    queued = (launch >= 0) & (launched <= begin)
    cause[queued] = CODE["dependency"]
    elsewhere = (before >= 0) & (trace.stream[before] != trace.stream[after])
    waited = queued & _must_wait(trace, work, after, _launched(trace, around.sibling), launched, elsewhere)
    cause[waited] = CODE["another stream"]
    cause[waited & elsewhere & communicates(trace, before)] = CODE["collective"]
    graph = queued & host.is_graph[launch]
    inside = graph & (before >= 0) & (trace.launch[before] == launch)
    cause[graph] = CODE["before a graph"]
    cause[inside] = CODE["inside a graph"]
    cause[queued & (end - begin < BACK_TO_BACK_NS)] = CODE["queued back to back"]
    return cause


def _must_wait(trace: Trace, work: DeviceWork, after: Ints, low: Ints, high: Ints, elsewhere: Bools) -> Bools:
    """Whether the stream of this work was ordered to wait for another one since the launch of the work before it.

    Records of the device name the stream; API calls do not, so with these alone the work that ended last
    must be another stream's too.
    """
    records = find_rows(trace, WAIT_RECORD, Kind.SYNC)
    records = records[(trace.device[records] == work.device) & (trace.stream[records] >= 0)]
    waits = np.zeros(after.size, bool)
    if records.size:
        stream = np.where(after >= 0, trace.stream[after], -1)
        for code in np.unique(trace.stream[records]).tolist():
            times = np.sort(trace.start_ns[records[trace.stream[records] == code]])
            between = np.searchsorted(times, high, side="right") > np.searchsorted(times, low, side="right")
            waits |= (stream == code) & between
        return waits
    times = np.sort(trace.start_ns[find_rows(trace, WAIT_CALL, Kind.RUNTIME)])
    return elsewhere & (np.searchsorted(times, high, side="right") > np.searchsorted(times, low, side="right"))


def _cut(trace: Trace, idle: Union, around: _Around, whole: Ints, host: Host) -> Iterator[Pieces]:
    begin, end = idle.starts, idle.ends
    launch = np.where(around.after >= 0, trace.launch[around.after], -1)
    hidden_from = _unrecorded_graph_since(trace, idle, around, host)
    # Work launched before the interval began waits for a graph that the trace does not show, if one is between them.
    late = np.flatnonzero((whole < 0) | (hidden_from < end))
    known = np.flatnonzero((whole >= 0) & (hidden_from >= end))
    yield Pieces(known, whole[known], begin[known], end[known], launch[known])
    hidden = np.maximum(hidden_from[late], begin[late])
    yield _kept(late, np.full(late.size, CODE["unrecorded graph"]), hidden, end[late], np.full(late.size, -1))
    end = np.minimum(end[late], hidden)
    # At the end of the window nothing was launched: what the loop's thread did is the cause to the end.
    until = np.where(launch[late] >= 0, np.minimum(np.maximum(trace.start_ns[launch[late]], begin[late]), end), end)
    latency = np.where(
        host.is_graph[launch[late]] & (launch[late] >= 0), CODE["before a graph"], CODE["launch latency"]
    )
    latency[loads_code(trace, around.after[late])] = CODE["first use"]
    yield _kept(late, latency, until, end, launch[late])
    thread = np.where(launch[late] >= 0, trace.track[launch[late]], host.main)
    for track in np.flatnonzero(np.bincount(thread)).tolist():
        mine = (thread == track) & (until > begin[late])
        yield from _on_thread(trace, host, track, Union(begin[late[mine]], until[mine]), late[mine])


def _unrecorded_graph_since(trace: Trace, idle: Union, around: _Around, host: Host) -> Ints:
    """When, since the launch of the last work before each interval, an unrecorded graph was launched; else its end."""
    if not host.unrecorded_graphs.size:
        return idle.ends
    at = np.searchsorted(host.unrecorded_graphs, around.launched, side="right")
    first = host.unrecorded_graphs[np.minimum(at, host.unrecorded_graphs.size - 1)]
    # Work launched before the graph does not wait for it, on whatever stream it is.
    launched = _launched(trace, around.after)
    until = np.where(around.after >= 0, np.maximum(launched, idle.starts), idle.ends)
    until = np.where((around.after >= 0) & (trace.launch[around.after] < 0), LONG_AGO, until)
    return np.where((at < host.unrecorded_graphs.size) & (first < np.minimum(until, idle.ends)), first, idle.ends)


def _kept(interval: Ints, cause: Ints, starts: Ints, ends: Ints, row: Ints) -> Pieces:
    kept = ends > starts
    return Pieces(interval[kept], cause[kept], starts[kept], ends[kept], row[kept])


def _on_thread(trace: Trace, host: Host, track: int, waiting: Union, interval: Ints) -> Iterator[Pieces]:
    """Charge intervals in which the device waited for a thread to what that thread was in."""
    rows = host.rows_of(track)
    # Only events that reach into a waiting interval can own a part of one; those above them do so too.
    at = np.searchsorted(waiting.ends, trace.start_ns[rows], side="right")
    reaches = at < waiting.ends.size
    reaches &= (
        trace.end_ns[rows] > waiting.starts[np.minimum(at, waiting.ends.size - 1)] if waiting.ends.size else False
    )
    rows = rows[reaches]
    segments = find_innermost(trace.start_ns[rows], trace.end_ns[rows])
    which, owner, first, last = overlap(segments, waiting.starts, waiting.ends)
    yield Pieces(interval[which], host.causes(rows)[owner], first, last, rows[owner])
    rest = without(waiting, Union(first, last))
    which = interval[np.searchsorted(waiting.starts, rest.starts, side="right") - 1]
    if track in host.workers:
        yield from _on_thread(trace, host, host.main, rest, which)
    else:
        nothing = np.full(which.size, CODE["uninstrumented"])
        yield Pieces(which, nothing, *rest, np.full(which.size, -1))


def _joined(parts: Iterable[Pieces]) -> Pieces:
    return Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _carved(pieces: Pieces, of: Union, cause: int) -> Pieces:
    """The pieces, with another cause for the part of them that is in a union."""
    if not of.starts.size or not pieces.row.size:
        return pieces
    order = np.argsort(pieces.starts, kind="stable")
    pieces = Pieces(*(column[order] for column in pieces))
    time = Union(pieces.starts, pieces.ends)

    def part(inside: Union) -> Pieces:
        which = np.searchsorted(time.starts, inside.starts, side="right") - 1
        return Pieces(pieces.interval[which], pieces.cause[which], *inside, pieces.row[which])

    inside = part(common(time, of))
    return _joined((part(without(time, of)), inside._replace(cause=np.full_like(inside.cause, cause))))


def _of_recompiling(trace: Trace, work: DeviceWork, pieces: Pieces) -> Pieces:
    """The pieces, where compiling that recurs has a cause of its own in place of first use."""
    row = np.where(pieces.cause == CODE["first use"], pieces.row, -1)
    again = recompiles(trace, work, pieces.starts, pieces.ends - pieces.starts, row)
    return pieces._replace(cause=np.where(again, CODE["recompiling"], pieces.cause))


def _of_syncs(trace: Trace, work: DeviceWork, pieces: Pieces) -> Pieces:
    """The pieces, in which a sync is also the cause of what follows it up to the next launch.

    In a sync the host loses what it was ahead: as much of the late launches after it as the device was busy in it.
    """
    waits = wait_times(trace)
    mine = np.flatnonzero(waits.device == work.device)
    order = np.argsort(pieces.starts, kind="stable")
    pieces = Pieces(*(column[order] for column in pieces))
    late = np.isin(pieces.cause, LATE)
    time = Union(pieces.starts[late], pieces.ends[late])
    if not mine.size or not time.starts.size:
        return pieces
    begin, end, until = trace.start_ns[waits.rows[mine]], trace.end_ns[waits.rows[mine]], waits.until[mine]
    ahead = np.cumsum(covered_before(work.busy, end) - covered_before(work.busy, begin))
    first = np.searchsorted(waits.group[mine], waits.group[mine])
    ahead -= np.append(0, ahead)[first]
    before = covered_before(time, end)
    length = np.clip(covered_before(time, until) - before, 0, ahead)
    # When this much of the late launches has passed.
    passed = np.cumsum(time.ends - time.starts)
    last = np.minimum(np.searchsorted(passed, before + length, side="left"), passed.size - 1)
    reach = np.where(length > 0, time.ends[last] - (passed[last] - before - length), end)
    synced = _carved(Pieces(*(column[late] for column in pieces)), union(end, reach), CODE["sync"])
    return _joined((Pieces(*(column[~late] for column in pieces)), synced))


def _by_step(pieces: Pieces, bounds: Ints) -> Ints:
    steps = bounds.size - 1
    first = np.searchsorted(bounds[1:], pieces.starts, side="right")
    last = np.searchsorted(bounds[1:], pieces.ends, side="left")
    starts, ends, cause, step = pieces.starts, pieces.ends, pieces.cause, first
    if (across := np.flatnonzero(last > first)).size:
        which, more = expand(first[across] + 1, last[across] + 1)
        which = across[which]
        starts = np.concatenate((starts, bounds[more]))
        ends = np.concatenate((np.minimum(ends, bounds[first + 1]), np.minimum(ends[which], bounds[more + 1])))
        cause, step = np.concatenate((cause, cause[which])), np.concatenate((step, more))
    total = np.zeros((len(CAUSES), steps), np.int64)
    np.add.at(total.reshape(-1), cause * steps + step, ends - starts)
    return total
