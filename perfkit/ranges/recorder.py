"""The recorder of ranges: how often each range ran in each thread, and how long.

Each thread appends to a list of its own, without a lock (`recorder_listener`). `RangeRecorder.drain` takes what has
been written and adds it up. So memory does not grow with the length of a run. It consists of

- names: 4096 ranges, 11 MB (`range_objects.LIMIT`); further ones share a row;
- rows: `_MAX_ROWS`, 25 MB, one per range and thread; further pairs share a row per thread;
- what is written between two drains: 25 bytes per value, two values per begin and two per end. Drains come every
  `_PERIOD`. Where one finds `_MANY` values, each thread checks the length of its list from then on: at
  `recorder_listener.LIMIT` values (7 MB) it drains, at twice as many it waits for the drain under way, and finally
  drops them. Before that, a burst is bounded by the drainer's turn: it waits for the interpreter lock up to 5 ms per
  running thread, once when it wakes and some 30 times in numpy if the burst begins during a drain. The densest program
  (a loop of nothing but ranges) writes 60 MB in that time;
- the memory of a drain: 40 MB, because it reads `_CHUNK` values at a time;
- ranges open at once: 10,000 per thread, 2 MB (`event_stream.MAX_OPEN`).

What does not fit is dropped, counted (`RangeRecorder.dropped`) and reported once. A program with 300 ranges in three
threads needs less than 5 MB, after 10^8 ranges as after 10^4 (tests/ranges/test_bounds.py).
"""

from __future__ import annotations

import os
import threading
import weakref

from perfkit.errors import UsageError
from perfkit.ranges import dynamo, listeners, range_objects, recorder_listener
from perfkit.ranges.device_times import DeviceTimes
from perfkit.ranges.event_log import EventLog
from perfkit.ranges.event_stream import VALUES_PER_RANGE, RangeSums, SumStream
from perfkit.ranges.recorder_listener import LISTENER
from perfkit.run.records import RangeRow

#: Seconds between two drains: some microseconds each where there is little.
_PERIOD = 0.1
#: From the first drain of this many values on (40,000 ranges per second) threads check the length of their lists; see
#: `RangeRecorder.full`. It costs 20 ns per range, so less than 0.1% of the time where it begins.
_MANY = 1 << 14
#: Seconds that a thread with twice `recorder_listener.LIMIT` values waits for a drain under way before it drops them. A
#: drain takes 20 ms per such thread, and would take the interpreter lock from this one anyway.
_PATIENCE = 0.5
#: Values that are decoded at once: enough that numpy's overhead is negligible, few enough that its arrays stay small.
_CHUNK = 1 << 18

#: Maximum number of thread names with rows of their own; further names share one. A program has a few kinds of threads,
#: but may start them again and again under numbered names.
_MAX_THREADS = 64
_OTHER_THREADS = "(other threads)"
#: Maximum number of rows, one per range and thread: all names in four kinds of threads, 1.5 kB each.
_MAX_ROWS = 4 * range_objects.LIMIT


class _Alive:
    """An object in the local storage of a thread, freed when the thread ends."""

    __slots__ = ("__weakref__",)


class _RecordedThread:
    """A thread's events, and how far they have been read."""

    def __init__(self, name: str, buffer: list[int], stream: SumStream, alive: _Alive) -> None:
        self.name = name
        self.buffer = buffer
        self.stream = stream
        self.alive = weakref.ref(alive)
        self.lost: list[int] = []  # the number of values of each list that was dropped


class RangeRecorder:
    """Counts and times of every range from `start`, which makes it, until `stop`."""

    def __init__(self) -> None:
        self._device = DeviceTimes(self._thread_name)
        self._dropped = 0
        #: Per thread: ``buffer``, the list that generated code appends to.
        self.tls = threading.local()
        self._threads: list[_RecordedThread] = []
        self._log: EventLog | None = None
        self._sums: dict[tuple[str, int], RangeSums] = {}
        self._names: set[str] = set()
        self._lock = threading.Lock()
        #: Set with the first event of any thread: until then, the drainer waits without waking.
        self._begun = threading.Event()
        self._stopped = threading.Event()
        # A daemon thread: a program that never stops its recorder must be able to exit.
        self._drainer = threading.Thread(target=self._drain_until_stopped, name="perfkit-recorder", daemon=True)

    def _thread_name(self) -> str:
        """The name under which the calling thread has its rows."""
        identity = threading.get_ident()
        # Not `current_thread()`: for a thread that Python did not start it adds an entry that is never removed.
        name = next((thread.name for thread in threading.enumerate() if thread.ident == identity), "native thread")
        if name not in self._names and len(self._names) >= _MAX_THREADS:
            name = _OTHER_THREADS
        self._names.add(name)
        return name

    def new_buffer(self) -> list[int]:
        """The list of the calling thread, made for its first event."""
        buffer: list[int] = []
        alive = _Alive()
        name = self._thread_name()
        thread = _RecordedThread(name, buffer, self._new_stream(name), alive)
        self.tls.buffer, self.tls.alive, self.tls.thread = buffer, alive, thread
        self._threads.append(thread)
        self._begun.set()
        return buffer

    def full(self) -> list[int]:
        """Empty the calling thread's list, which has reached `recorder_listener.LIMIT`; return the one to continue."""
        maximum = 2 * recorder_listener.LIMIT
        self.drain()
        thread: _RecordedThread = self.tls.thread
        if len(thread.buffer) >= maximum:
            self.drain(_PATIENCE)
        if len(thread.buffer) >= maximum:
            # Another thread is still draining and may be reading this list, so a new one takes its place.
            thread.lost.append(len(thread.buffer))
            self.tls.buffer = thread.buffer = []
            listeners.warn_once(
                "ranges are made faster than they can be counted: some have been dropped "
                "(RangeRecorder.dropped is their number)",
                key="dropped",
            )
        return thread.buffer

    def drain(self, patience: float = 0) -> None:
        """Add up what has been written since the last drain.

        While another drain is under way, wait for it up to ``patience`` seconds, then return.
        """
        if self._lock.acquire(timeout=patience):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        """Read what every thread has written, with the lock held."""
        try:
            # Before they are read: meanwhile the threads that write have the interpreter lock most of the time.
            if sum(len(thread.buffer) for thread in self._threads[:]) > _MANY:
                with listeners.lock:
                    if LISTENER.recorder is self:
                        listeners.switch(listeners.DENSE, True)
            self._read()
        except Exception as error:  # noqa: BLE001 - an error of perfkit must neither end training nor fill its memory
            listeners.switch(listeners.RECORDER | listeners.DENSE, False)
            self._threads.clear()
            listeners.warn_once(f"the recorder of ranges has stopped: {type(error).__name__}: {error}")

    def _read(self) -> None:
        for thread in self._threads[:]:
            ended = thread.alive() is None
            while thread.lost:
                self._dropped += thread.lost.pop() // VALUES_PER_RANGE
                thread.stream.forget()
            buffer = thread.buffer
            values = buffer[:]
            # What the thread has appended meanwhile stays.
            del buffer[: len(values)]
            if self._log is not None:
                self._log.keep(thread.name, thread.stream, values)
            for index in range(0, len(values), _CHUNK):
                thread.stream.read(values[index : index + _CHUNK])
            if ended:
                self._dropped += thread.stream.dropped + len(thread.stream.opened)
                self._threads.remove(thread)

    def _new_stream(self, thread: str) -> SumStream:
        mine: dict[int, RangeSums] = {}

        def sums_of(number: int) -> RangeSums:
            if number not in mine:
                key = (thread, number)
                if key not in self._sums and len(self._sums) >= _MAX_ROWS:
                    listeners.warn_once(
                        f"there are more than {_MAX_ROWS} pairs of a range and a thread: further ones are added up "
                        f"as {range_objects.OTHERS!r}",
                        key="rows",
                    )
                    key = (thread, 0)
                mine[number] = self._sums.setdefault(key, RangeSums())
            return mine[number]

        return SumStream(sums_of)

    def start_log(self, max_spans: int) -> None:
        """Keep every event from now until `stop_log`, besides adding them up; at most ``max_spans`` ranges."""
        with self._lock:
            self._drain()
            self._log = EventLog(max_spans, self.dropped)
            for thread in self._threads:
                self._log.thread(thread.name, thread.stream)

    def stop_log(self) -> EventLog:
        """What was kept since `start_log`."""
        with self._lock:
            self._drain()
            log, self._log = self._log, None
            if log is None:
                raise UsageError("stop_log() without a start_log()")
            log.dropped += self.dropped
            return log

    @property
    def dropped(self) -> int:
        """The number of ranges that are in no row.

        They did not fit, or an end had no begin, or a begin no end: they were open when their thread ended, or too many
        were open. Where a list was dropped, ranges that began or ended outside of it may count twice.
        """
        return self._dropped + sum(thread.stream.dropped for thread in self._threads)

    @property
    def device_dropped(self) -> int:
        """The number of ranges with ``device_time=True`` that have none: see `device_times`."""
        return self._device.dropped

    def _drain_until_stopped(self) -> None:
        self._begun.wait()
        while not self._stopped.wait(_PERIOD):
            with self._lock:
                self._drain()

    def rows(self) -> tuple[RangeRow, ...]:
        """One row per range and thread, of the ranges that have ended; drains first."""
        if LISTENER.recorder is not self:
            self._device.read_rest()
        with self._lock:
            self._drain()
            found = []
            for (thread, number), sums in self._sums.items():
                made = range_objects.by_number(number)
                device_count, device_ns = self._device.sums.get((thread, number), (None, None))
                found.append(
                    RangeRow(
                        name=made.name,
                        category=made.category or "",
                        domain=made.domain,
                        thread=thread,
                        count=sums.count,
                        total_ns=sums.total_ns,
                        self_ns=sums.self_ns,
                        min_ns=sums.min_ns,
                        max_ns=sums.max_ns,
                        hist=tuple(sums.hist),
                        device_count=device_count,
                        device_ns=device_ns,
                    )
                )
            return tuple(found)

    def stop(self) -> None:
        """Stop recording; ranges that are open are not counted. The rows stay. Stopping again does nothing."""
        if LISTENER.recorder is not self:
            return
        LISTENER.stop()
        self._device.read_rest()
        self._device.stop()
        self._stopped.set()
        self._begun.set()
        with self._lock:
            self._drain()
            self._dropped = self.dropped
            # A range that is still open will append its end to a list that nobody reads any more.
            self._threads.clear()


dynamo.leave_alone(RangeRecorder.new_buffer.__code__, RangeRecorder.full.__code__)


def start() -> RangeRecorder:
    """Record every range in every thread from now on.

    Raises:
        UsageError: a recorder is running already.
    """
    if LISTENER.recorder is not None:
        raise UsageError("only one recorder can run at a time: stop() the running one first")
    recorder = RangeRecorder()
    recorder._drainer.start()
    recorder._device.start()
    LISTENER.start(recorder)
    return recorder


def _after_fork_in_child() -> None:
    # The child has no thread that drains, and a thread that is not there may have held the lock.
    recorder = LISTENER.recorder
    if recorder is not None:
        recorder._lock = threading.Lock()
        recorder._threads.clear()
        LISTENER.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
