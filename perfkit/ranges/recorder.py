"""Listener: perfkit's own recorder, which keeps how often each range ran and how long, per thread.

Each thread appends to a list of its own, without a lock (`events` says what). `Recorder.drain` takes what
has been written and folds it into sums. So memory does not grow with the length of a run; its parts are

- names: 4096 ranges, 11 MB (`context.LIMIT`), further ones share a row;
- rows: `_MAX_ROWS`, 25 MB, of a range and a thread each; further pairs share a row per thread;
- what is written between two drains, 25 bytes a value, two values a begin and two an end. Drains come every
  `_PERIOD`. After one that found `_MANY` values each thread looks after its list itself: with `_LIMIT` values in
  it (7 MB) it drains, with twice as many it waits for the drain that is under way, and in the end drops them.
  Before that, a burst is bounded by the drainer's turn: no range is made without the interpreter's lock, and who
  waits for that gets it within 5 ms for each thread that runs. The densest program (a loop of nothing but
  ranges) writes 40 MB in that time;
- what a drain needs meanwhile: 40 MB, because it reads `_CHUNK` values at a time;
- ranges open at once: 10,000 per thread, 2 MB (`events.MAX_OPEN`).

What does not fit is dropped, counted (`Recorder.dropped`) and told once. A program with 300 ranges in three
threads needs below 5 MB, after 10^8 ranges as after 10^4 (tests/ranges/test_bounds.py).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from perfkit.errors import UsageError
from perfkit.ranges import calls, context, dynamo, listeners

if TYPE_CHECKING:
    # At run time only a recorder that starts needs them (numpy, msgspec), not every program with a range in it.
    from perfkit.ranges.event_stream import Stream, Sums
    from perfkit.run.records import RangeRow

#: Seconds between two drains: some microseconds each where there is little.
_PERIOD = 0.1
#: After a drain of this many values (300,000 ranges a second) threads look after the length of their lists, which
#: costs 20 ns a range; see `Recorder._full`.
_MANY = 1 << 17
#: Values in a thread's list at which it drains by itself: 10 ms of work, once in 65,000 ranges.
_LIMIT = 1 << 18
#: Seconds a thread with twice as many waits for a drain that is under way, before it drops them. A drain takes
#: 20 ms for each such thread, and would take the interpreter's lock from this one anyway.
_PATIENCE = 0.5
#: Values that are read at once: enough that numpy's overhead does not count, few enough that its arrays stay small.
_CHUNK = 1 << 18

#: Threads with rows of their own; those of further names share one. A program has a few kinds of threads, but
#: may start them again and again under numbered names.
_MAX_THREADS = 64
_OTHER_THREADS = "(other threads)"
#: Rows, one per range and thread: all names in four kinds of threads, 1.5 kB each.
_MAX_ROWS = 4 * context.LIMIT


class _Alive:
    """Lies in a thread's local storage and dies with the thread."""

    __slots__ = ("__weakref__",)


class _Thread:
    """A thread's events, and how far they have been read."""

    def __init__(self, buffer: list[int], stream: Stream, alive: _Alive) -> None:
        self.buffer = buffer
        self.stream = stream
        self.alive = weakref.ref(alive)
        self.lost: list[int] = []  # how many values of a list were given up, once for each time


class Recorder:
    """Counts and times of every range from `start_recorder`, which makes it, until `stop`."""

    def __init__(self) -> None:
        from perfkit.ranges import device, event_stream

        self._events = event_stream
        self._device = device.DeviceTimes(self._thread_name)
        self._dropped = 0
        self._tls = threading.local()
        self._threads: list[_Thread] = []
        self._sums: dict[tuple[str, int], Sums] = {}
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        # A daemon: a program that never stops its recorder must still be able to end.
        self._drainer = threading.Thread(target=self._drain_until_stopped, name="perfkit-recorder", daemon=True)

    def _thread_name(self) -> str:
        """The name under which the calling thread has its rows."""
        identity = threading.get_ident()
        # Not `current_thread()`: for a thread that Python did not start it makes an entry that is never removed.
        name = next((thread.name for thread in threading.enumerate() if thread.ident == identity), "native thread")
        if name not in self._names and len(self._names) >= _MAX_THREADS:
            name = _OTHER_THREADS
        self._names.add(name)
        return name

    def _new_buffer(self) -> list[int]:
        """The buffer of the calling thread, made on its first event."""
        buffer: list[int] = []
        alive = _Alive()
        thread = _Thread(buffer, self._new_stream(self._thread_name()), alive)
        self._tls.buffer, self._tls.alive, self._tls.thread = buffer, alive, thread
        self._threads.append(thread)
        return buffer

    def _full(self) -> list[int]:
        """Make room in the calling thread's buffer, which has reached `_LIMIT`; return the one to go on with."""
        self.drain()
        thread: _Thread = self._tls.thread
        if len(thread.buffer) >= 2 * _LIMIT:
            self.drain(_PATIENCE)
        if len(thread.buffer) >= 2 * _LIMIT:
            # Another thread is draining still. It may be reading this list: so a new one takes its place.
            thread.lost.append(len(thread.buffer))
            self._tls.buffer = thread.buffer = []
            listeners.tell(
                "ranges are made faster than they can be counted: some have been dropped "
                "(their number stands in Recorder.dropped)",
                once="dropped",
            )
        return thread.buffer

    def drain(self, patience: float = 0) -> None:
        """Fold what has been written since the last drain into the sums.

        Where a drain is under way, return at once or after ``patience`` seconds.
        """
        if self._lock.acquire(timeout=patience):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> int:
        """Read what every thread has written; how many values that were. Call it with the lock."""
        try:
            return self._read()
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end a training run, nor fill its memory
            listeners.listen(listeners.RECORDER | listeners.DENSE, False)
            self._threads.clear()
            listeners.tell(f"the recorder of ranges has stopped: {type(error).__name__}: {error}")
            return 0

    def _read(self) -> int:
        drained = 0
        for thread in self._threads[:]:
            ended = thread.alive() is None
            while thread.lost:
                # A begin and an end are two values each.
                self._dropped += thread.lost.pop() // 4
                thread.stream.forget()
            buffer = thread.buffer
            values = buffer[:]
            # What the thread has appended meanwhile stays.
            del buffer[: len(values)]
            drained += len(values)
            for index in range(0, len(values), _CHUNK):
                thread.stream.read(values[index : index + _CHUNK])
            if ended:
                self._dropped += thread.stream.dropped + len(thread.stream.opened)
                self._threads.remove(thread)
        return drained

    def _new_stream(self, thread: str) -> Stream:
        mine: dict[int, Sums] = {}

        def sums_of(number: int) -> Sums:
            if number not in mine:
                key = (thread, number)
                if key not in self._sums and len(self._sums) >= _MAX_ROWS:
                    listeners.tell(
                        f"there are more than {_MAX_ROWS} pairs of a range and a thread: further ones are summed "
                        f"up as {context.OTHERS!r}",
                        once="rows",
                    )
                    key = (thread, 0)
                mine[number] = self._sums.setdefault(key, self._events.Sums())
            return mine[number]

        return self._events.Stream(sums_of)

    @property
    def dropped(self) -> int:
        """Ranges that are in no row.

        They did not fit; or an end had no begin, or a begin no end: open when their thread ended, or too many open.
        Where a list was dropped, those that began or ended outside of it may count twice.
        """
        return self._dropped + sum(thread.stream.dropped for thread in self._threads)

    @property
    def device_dropped(self) -> int:
        """Ranges that asked for a device time and are counted without one: see `device`."""
        return self._device.dropped

    def _drain_until_stopped(self) -> None:
        while not self._stopped.wait(_PERIOD):
            with self._lock:
                drained = self._drain()
            if drained > _MANY:
                with listeners.lock:
                    if _active is self:
                        listeners.listen(listeners.DENSE, True)

    def rows(self) -> tuple[RangeRow, ...]:
        """One row per range and thread, of the ranges that have ended; drains first."""
        from perfkit.run.records import RangeRow

        if _active is not self:
            self._device.read_rest()
        with self._lock:
            self._drain()
            found = []
            for (thread, number), sums in self._sums.items():
                made = context.by_number(number)
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
        """Stop recording; what is open then is not counted. The rows stay. Stopping again does nothing."""
        global _active
        if _active is not self:
            return
        _active = None
        _hear(None)
        self._device.read_rest()
        self._stopped.set()
        with self._lock:
            self._drain()
            self._dropped = self.dropped
            # A range that is still open will write its end; that has no place here any more.
            self._threads.clear()


dynamo.leave_alone(Recorder._new_buffer.__code__, Recorder._full.__code__)

_active: Recorder | None = None


def start_recorder() -> Recorder:
    """Record every range in every thread from now on.

    Raises:
        UsageError: a recorder is running already.
    """
    global _active
    if _active is not None:
        raise UsageError("only one recorder can run at a time: stop() the running one first")
    _active = recorder = Recorder()
    recorder._drainer.start()
    _hear(recorder)
    return recorder


def _hear(recorder: Recorder | None) -> None:
    """Have ranges call this recorder, or none."""
    if recorder is None:
        listeners.listen(listeners.RECORDER | listeners.DENSE, False)
        calls.new_buffer = calls.full = calls.throwaway
        return
    # Lists of its own for each recorder: a range that outlives the last one ends in the last one's list.
    calls.tls, calls.new_buffer, calls.full, calls.limit = recorder._tls, recorder._new_buffer, recorder._full, _LIMIT
    timed = recorder._device
    calls.device_begin, calls.device_end = timed.begin, timed.end
    calls.device_enter, calls.device_leave = timed.enter, timed.leave
    listeners.listen(listeners.RECORDER, True)


def _after_fork_in_child() -> None:
    # The child has no thread that drains, and its copy of the lock may be held by one that is not there.
    global _active
    if _active is not None:
        _active._lock = threading.Lock()
        _active._threads.clear()
        _active = None
        _hear(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def running() -> bool:
    """Whether a recorder runs."""
    return _active is not None
