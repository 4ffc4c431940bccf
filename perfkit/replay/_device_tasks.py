"""The device's side of a task graph: its work as tasks, in the order of their streams, and who waits for what."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from perfkit.measures._nested import groups
from perfkit.measures._rows import find_rows, mask_of
from perfkit.measures.device._device_work import GRAPH_LAUNCH, communicates
from perfkit.measures.device._idle import BACK_TO_BACK_NS, WAIT_CALL, WAIT_RECORD
from perfkit.measures.host._blocking_calls import ASYNC_COPY, blocking_calls
from perfkit.trace.columns import Kind, Trace, positions_in
from perfkit.trace.intervals import Bools, Ints

_DEVICE_SYNC = re.compile(r"^(?:cuda|hip|cu)(?:Device|Ctx)Synchronize|^Context Sync$")
_EVENT_SYNC = re.compile(r"^(?:cuda|hip|cu)EventSynchronize|^Event Sync$")
_SYNC_RECORD = re.compile(r"^(?:Event|Stream|Context) Sync$")
_FROM_PAGEABLE = re.compile(r"Memcpy HtoD \((?:Pageable|Host) ->")

#: A waiting stream begins its next work within this time of the end of what it waited for: an event costs some µs more
#: than the order within a stream, which `BACK_TO_BACK_NS` bounds.
EVENT_DELAY_NS = 2 * BACK_TO_BACK_NS
#: A copy from pageable memory goes in pieces, and its call returns when the last one is staged: on an H200 6 to 20 µs
#: before the copy had ended, of copies of 48 and 3 MB.
STAGED_NS = 50_000


class DeviceTasks(NamedTuple):
    """The work of all devices, in order of start. The kernels of one graph launch are one task.

    ``row`` is the work's row in the trace (of a graph the first), ``launch`` that of its call, -1 for none. ``queue``
    is its stream, as a number over all devices; ``task_of_row`` finds the task of each row of the trace, -1 for none.
    """

    row: Ints
    starts: Ints
    ends: Ints
    launch: Ints
    launched_at: Ints
    device: Ints
    queue: Ints
    is_graph: Bools
    communicates: Bools
    task_of_row: Ints

    @property
    def size(self) -> int:
        """The number of tasks."""
        return int(self.row.size)


class Edges(NamedTuple):
    """``target[i]`` begins no earlier than ``source[i]`` ends: tasks of devices."""

    source: Ints
    target: Ints


class HostWaits(NamedTuple):
    """Calls in which the host waits: call ``row`` returns when the tasks ``source`` are done.

    One entry for each task waited for, so that a call that waits for several streams has several. ``is_copy``: the call
    waits for its own copy.
    """

    row: Ints
    source: Ints
    is_copy: Bools


def find_tasks(trace: Trace) -> DeviceTasks:
    """The device's tasks."""
    rows = trace.device_rows
    rows = rows[np.lexsort((trace.end_ns[rows], trace.start_ns[rows]))]
    launch = trace.launch[rows]
    graphs = mask_of(trace, find_rows(trace, GRAPH_LAUNCH, Kind.RUNTIME))
    in_graph = (launch >= 0) & graphs[launch]
    task, chosen = _tasks_of(launch, in_graph)
    row = rows[chosen]
    ends = np.full(chosen.size, np.iinfo(np.int64).min)
    np.maximum.at(ends, task, trace.end_ns[rows])
    task_of_row = np.full(len(trace), -1, np.int64)
    task_of_row[rows] = task
    queue = _stream_codes(trace, row)
    launched = launch[chosen]
    return DeviceTasks(
        row,
        trace.start_ns[row],
        ends,
        launched,
        np.where(launched >= 0, trace.start_ns[launched], trace.start_ns[row]),
        trace.device[row].astype(np.int64),
        queue,
        in_graph[chosen],
        communicates(trace, row),
        task_of_row,
    )


def _tasks_of(launch: Ints, in_graph: Bools) -> tuple[Ints, Ints]:
    """The task of each work, and the work that stands for each task: of a graph the first one."""
    if not in_graph.any():
        return np.arange(launch.size), np.arange(launch.size)
    single = -1 - np.arange(launch.size)
    _, first, place = np.unique(np.where(in_graph, launch, single), return_index=True, return_inverse=True)
    order = np.argsort(first)
    task = np.empty(order.size, np.int64)
    task[order] = np.arange(order.size)
    return task[place.reshape(-1)], first[order]


def _stream_codes(trace: Trace, rows: Ints) -> Ints:
    """The stream of each row as a number: of two devices, streams of the same number are two."""
    streams = trace.device[rows].astype(np.int64) * 2**32 + trace.stream[rows].astype(np.int64)
    known = np.unique(streams)
    return np.asarray(np.searchsorted(known, streams), np.int64)


def stream_order(trace: Trace, tasks: DeviceTasks) -> tuple[Ints, Edges]:
    """For each task the one before it on its stream, -1 for none; and further edges, where a graph uses several."""
    rows = trace.device_rows
    task = tasks.task_of_row[rows]
    # Each stream's tasks in order, a graph once on each stream that it uses. (np.unique hashes: six times as long.)
    both = np.sort(_stream_codes(trace, rows) * tasks.size + task)
    both = both[np.append(True, both[1:] > both[:-1])] if both.size else both
    stream, ordered = np.divmod(both, max(1, tasks.size))
    same = stream[1:] == stream[:-1]
    source, target = ordered[:-1][same], ordered[1:][same]
    before = np.full(tasks.size, -1, np.int64)
    own = tasks.queue[source] == tasks.queue[target]
    before[target[own]] = source[own]
    return before, Edges(source[~own], target[~own])


class _Queue(NamedTuple):
    """The tasks of one stream in the order of their launch, and until when the stream has work after each."""

    task: Ints
    launched_at: Ints
    done_at: Ints

    def last_before(self, times: Ints) -> Ints:
        """The place of the last task launched before each time; -1 for none."""
        return np.asarray(np.searchsorted(self.launched_at, times, side="left") - 1, np.int64)


def _queues(tasks: DeviceTasks) -> list[_Queue]:
    found = []
    for _, mine in groups(tasks.queue):
        mine = mine[np.argsort(tasks.launched_at[mine], kind="stable")]
        found.append(_Queue(mine, tasks.launched_at[mine], np.maximum.accumulate(tasks.ends[mine])))
    return found


def find_event_edges(trace: Trace, tasks: DeviceTasks) -> Edges:
    """Edges from one stream to another, as events order them.

    Where the trace has the device's records (``Stream Wait Event``), these name both streams. API calls do not: what
    is launched next on the thread of a wait then depends on the work launched last on another stream, if it began
    after that had ended.
    """
    queues = _queues(tasks)
    records = find_rows(trace, WAIT_RECORD, Kind.SYNC)
    found = _recorded_waits(trace, tasks, queues, records) if records.size else None
    if found is None or not found.source.size:
        found = _waits_of_calls(trace, tasks, queues)
    kept = (found.source >= 0) & (found.target >= 0)
    source, target = found.source[kept], found.target[kept]
    kept = (source < target) & (tasks.ends[source] <= tasks.starts[target])
    pairs = np.unique(np.stack((target[kept], source[kept])), axis=1)
    return Edges(pairs[1], pairs[0])


def _recorded_waits(trace: Trace, tasks: DeviceTasks, queues: list[_Queue], records: Ints) -> Edges:
    calls = _calls_by_correlation(trace)
    fields = trace.fields(records, ("wait_on_stream", "wait_on_cuda_event_record_corr_id"))
    waited_stream, recorded = (fields[key].numbers() for key in fields)
    wait_call = calls.find(trace.correlation[records])
    record_call = calls.find(np.where(np.isfinite(recorded), recorded, -1).astype(np.int64))
    queue_of = _queue_numbers(trace, tasks)
    sources, targets = [], []
    for i in range(records.size):
        device = int(trace.device[records[i]])
        to = queue_of.get((device, int(trace.stream[records[i]])))
        of = queue_of.get((device, int(waited_stream[i]) if np.isfinite(waited_stream[i]) else -2))
        if to is None or of is None or wait_call[i] < 0 or record_call[i] < 0 or to == of:
            continue
        last = int(np.searchsorted(queues[of].launched_at, trace.start_ns[record_call[i]])) - 1
        following = int(np.searchsorted(queues[to].launched_at, trace.start_ns[wait_call[i]]))
        if last >= 0 and following < queues[to].task.size:
            sources.append(int(queues[of].task[last]))
            targets.append(int(queues[to].task[following]))
    return Edges(np.array(sources, np.int64), np.array(targets, np.int64))


def _queue_numbers(trace: Trace, tasks: DeviceTasks) -> dict[tuple[int, int], int]:
    _, first = np.unique(tasks.queue, return_index=True)
    rows = tasks.row[first]
    return {
        (device, stream): number
        for number, (device, stream) in enumerate(
            zip(trace.device[rows].tolist(), trace.stream[rows].tolist(), strict=True)
        )
    }


class _Calls(NamedTuple):
    correlation: Ints
    row: Ints

    def find(self, correlation: Ints) -> Ints:
        """The API call of each correlation, -1 for none."""
        return np.append(self.row, -1)[positions_in(self.correlation, correlation)]


def _calls_by_correlation(trace: Trace) -> _Calls:
    rows = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & (trace.correlation > 0))
    rows = rows[np.argsort(trace.correlation[rows], kind="stable")]
    return _Calls(trace.correlation[rows], rows)


def _waits_of_calls(trace: Trace, tasks: DeviceTasks, queues: list[_Queue]) -> Edges:
    calls = find_rows(trace, WAIT_CALL, Kind.RUNTIME)
    linked = np.flatnonzero(tasks.launch >= 0)
    if not calls.size or not linked.size or len(queues) < 2:
        return Edges(np.zeros(0, np.int64), np.zeros(0, np.int64))
    track = trace.track[tasks.launch[linked]].astype(np.int64)
    order = linked[np.lexsort((tasks.launched_at[linked], track))]
    target = np.full(calls.size, -1, np.int64)
    for one in np.unique(trace.track[calls]).tolist():
        mine = order[trace.track[tasks.launch[order]] == one]
        wanted = trace.track[calls] == one
        at = np.searchsorted(tasks.launched_at[mine], trace.start_ns[calls[wanted]], side="left")
        target[wanted] = np.append(mine, -1)[np.minimum(at, mine.size)]
    at_call = trace.start_ns[calls]
    source, latest = np.full(calls.size, -1, np.int64), np.full(calls.size, np.iinfo(np.int64).min)
    for number, queue in enumerate(queues):
        place = queue.last_before(at_call)
        launched = np.where(place >= 0, queue.launched_at[place], np.iinfo(np.int64).min)
        other = (target >= 0) & (place >= 0) & (tasks.queue[target] != number) & (launched > latest)
        other &= tasks.device[queue.task[0]] == tasks.device[target]
        source[other], latest[other] = queue.task[place[other]], launched[other]
    return Edges(source, target)


def find_coinciding(tasks: DeviceTasks, unexplained: Ints) -> Edges:
    """For tasks whose start nothing explains: a task of another stream that ended just before it, launched earlier."""
    by_end = np.argsort(tasks.ends, kind="stable")
    at = np.searchsorted(tasks.ends[by_end], tasks.starts[unexplained], side="right") - 1
    source = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    fits = (source >= 0) & (source < unexplained)
    fits &= tasks.queue[source] != tasks.queue[unexplained]
    fits &= tasks.device[source] == tasks.device[unexplained]
    fits &= tasks.starts[unexplained] - tasks.ends[source] <= EVENT_DELAY_NS
    fits &= tasks.launched_at[source] <= tasks.launched_at[unexplained]
    return Edges(source[fits], unexplained[fits])


def find_syncs(trace: Trace, tasks: DeviceTasks) -> HostWaits:
    """The waits of the host, each for its own copy, an event, a stream or all streams of a device."""
    own_copy = _blocking_copies(trace, tasks)
    rows = np.setdiff1d(blocking_calls(trace), trace.launch[tasks.row[own_copy]])
    queues = _queues(tasks)
    parts = [(trace.launch[tasks.row[own_copy]], own_copy, np.ones(own_copy.size, bool))]
    if rows.size and queues:
        streams = _streams_waited_for(trace, tasks, rows)
        begin, end = trace.start_ns[rows], trace.end_ns[rows]
        devices = _matching(trace, rows, _DEVICE_SYNC)
        parts += _of_devices(tasks, queues, rows[devices], begin[devices], end[devices])
        rest = ~devices
        events = _matching(trace, rows, _EVENT_SYNC)[rest]
        of = _latest(tasks, queues, begin[rest], end[rest], events, streams[rest])
        parts.append((rows[rest][of >= 0], of[of >= 0], np.zeros(int((of >= 0).sum()), bool)))
    row, source, is_copy = (np.concatenate(column) for column in zip(*parts, strict=True))
    return HostWaits(row.astype(np.int64), source.astype(np.int64), is_copy)


def _matching(trace: Trace, rows: Ints, pattern: re.Pattern[str]) -> Bools:
    names = {code: pattern.search(trace.names[code]) is not None for code in np.unique(trace.name[rows]).tolist()}
    return np.array([names[code] for code in trace.name[rows].tolist()], bool)


def _blocking_copies(trace: Trace, tasks: DeviceTasks) -> Ints:
    """Copies whose call returned after they ended, or, from pageable memory, had handed over their last piece."""
    copies = np.flatnonzero((trace.kind[tasks.row] == int(Kind.COPY)) & (tasks.launch >= 0))
    if not copies.size:
        return copies
    call = tasks.launch[copies]
    blocks = mask_of(trace, blocking_calls(trace))[call]
    pageable = _matching(trace, tasks.row[copies], _FROM_PAGEABLE) & _matching(trace, call, ASYNC_COPY)
    staged = np.minimum(STAGED_NS, (tasks.ends[copies] - tasks.starts[copies]) // 2)
    over = tasks.ends[copies] - np.where(pageable, staged, 0)
    return copies[(blocks | pageable) & (trace.end_ns[call] >= over)]


def _streams_waited_for(trace: Trace, tasks: DeviceTasks, rows: Ints) -> Ints:
    """The queue that each call waits for, from the device's records; -1 where these do not name it."""
    found = np.full(rows.size, -1, np.int64)
    records = find_rows(trace, _SYNC_RECORD, Kind.SYNC)
    records = records[(trace.correlation[records] > 0) & (trace.stream[records] >= 0)]
    if not records.size:
        return found
    records = records[np.argsort(trace.correlation[records], kind="stable")]
    at = positions_in(trace.correlation[records], np.where(trace.correlation[rows] > 0, trace.correlation[rows], -1))
    numbers = _queue_numbers(trace, tasks)
    for i in np.flatnonzero(at >= 0).tolist():
        record = records[at[i]]
        found[i] = numbers.get((int(trace.device[record]), int(trace.stream[record])), -1)
    return found


def _of_devices(
    tasks: DeviceTasks, queues: list[_Queue], rows: Ints, begin: Ints, end: Ints
) -> list[tuple[Ints, Ints, Bools]]:
    """A wait for a device is one for the last work of each of its streams; the trace does not name the device."""
    found = []
    for queue in queues:
        place = queue.last_before(begin)
        fits = (place >= 0) & (queue.done_at[np.maximum(place, 0)] <= end)
        found.append((rows[fits], queue.task[place[fits]], np.zeros(int(fits.sum()), bool)))
    return found


def _latest(tasks: DeviceTasks, queues: list[_Queue], begin: Ints, end: Ints, events: Bools, stream: Ints) -> Ints:
    """The task that each call waits for: of what was launched before it, the one that ended last before it returned.

    A wait for a stream is one for its last work. A wait for an event may be for any, and is one only if the call took
    longer than a call takes, and returned as soon as that work had ended.
    """
    found, latest = np.full(begin.size, -1, np.int64), np.full(begin.size, np.iinfo(np.int64).min)
    for number, queue in enumerate(queues):
        place = queue.last_before(begin)
        done = np.searchsorted(queue.done_at, end, side="right") - 1
        place = np.where(events, np.minimum(place, done), place)
        ended = queue.done_at[np.maximum(place, 0)]
        fits = (place >= 0) & (ended <= end) & (ended > latest) & ((stream < 0) | (stream == number))
        fits &= ~events | ((end - begin > BACK_TO_BACK_NS) & (end - ended <= EVENT_DELAY_NS) & (ended > begin))
        found[fits], latest[fits] = queue.task[place[fits]], ended[fits]
    return found
