"""Listener: perfkit's own recorder, which keeps how often each range ran and how long, per thread.

Each thread appends to a list of its own, without a lock: a range's number, then the time; at its end the
complement of the number, then the time. `Recorder.drain` takes what has been written and folds it into
sums, so memory is bounded by the number of different ranges and threads, not by how long a run is.

The stream of a thread is read like a program for a stack machine: a number (small) is pushed, a time
(large) belongs to the number on top. So an event that came between the two appends of another one, from a
signal handler, a garbage collection, or a generator that ended in a foreign thread, spoils nothing, and a
drain may cut the stream anywhere.

Self time is the time in which a range was the one begun last of those open in its thread: what it spent
outside other ranges, and defined for coroutines that interleave too.
"""

from __future__ import annotations

import threading
import weakref

from perfkit.errors import UsageError
from perfkit.ranges import calls, context, dynamo, switch
from perfkit.run.records import RangeRow

#: Numbers lie below, times above: the clock passes a millisecond (2^20 ns) long before Python has started.
_TIMES = 1 << 20

#: Seconds between two drains. Half a second of the densest program (a million ranges a second) is 50 MB of
#: events; twice a second costs nothing where there is little.
_PERIOD = 0.5
#: After a drain of this many values (half a million ranges a second) the next one follows ten times sooner.
_MANY = 1_000_000

#: Ranges open at once in one thread. Python's own recursion limit is 1000; only begins without ends come here.
_MAX_OPEN = 10_000
#: Threads with rows of their own; those of further names share one. A program has a few kinds of threads, but
#: may start them again and again under numbered names.
_MAX_THREADS = 64
_OTHER_THREADS = "(other threads)"

_BUCKETS = 64


class _Sums:
    """What is kept of one range in one thread."""

    __slots__ = ("count", "hist", "max_ns", "min_ns", "self_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.total_ns = self.self_ns = self.max_ns = 0
        self.min_ns = 1 << 63
        self.hist = [0] * _BUCKETS


class _Alive:
    """Lies in a thread's local storage and dies with the thread."""

    __slots__ = ("__weakref__",)


class _Thread:
    """The events of one thread, and how far they have been read."""

    def __init__(self, name: str, buffer: list[int], alive: _Alive) -> None:
        self.name = name
        self.buffer = buffer
        self.alive = weakref.ref(alive)
        self.pending: list[int] = []  # numbers whose times have not been read yet
        self.opened: list[list[int]] = []  # [number, begin, self time], in the order they began
        self.last_ns = 0


class Recorder:
    """Sums of every range from `start_recorder` until `stop`. Made by `start_recorder`.

    ``dropped`` counts ends without a begin, begins beyond the bound of ranges open at once, and ranges that
    were still open when their thread ended.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._tls = threading.local()
        self._threads: list[_Thread] = []
        self._sums: dict[tuple[str, int], _Sums] = {}
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        # A daemon: a program that never stops its recorder must still be able to end.
        self._drainer = threading.Thread(target=self._drain_until_stopped, name="perfkit-recorder", daemon=True)

    def _new_buffer(self) -> list[int]:
        """The buffer of the calling thread, made on its first event."""
        identity = threading.get_ident()
        # Not `current_thread()`: for a thread that Python did not start it makes an entry that is never removed.
        name = next((thread.name for thread in threading.enumerate() if thread.ident == identity), "native thread")
        buffer: list[int] = []
        alive = _Alive()
        self._tls.buffer, self._tls.alive = buffer, alive
        self._threads.append(_Thread(name, buffer, alive))
        return buffer

    def drain(self) -> None:
        """Fold what has been written since the last drain into the sums; returns at once if a drain is under way."""
        if self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> int:
        drained = 0
        for thread in self._threads[:]:
            ended = thread.alive() is None
            values = thread.buffer[:]
            # What the thread has appended meanwhile stays.
            del thread.buffer[: len(values)]
            drained += len(values)
            self._read(thread, values)
            if ended:
                self.dropped += len(thread.opened)
                self._threads.remove(thread)
        return drained

    def _read(self, thread: _Thread, values: list[int]) -> None:
        pending, opened, last = thread.pending, thread.opened, thread.last_ns
        for value in values:
            if value < _TIMES:
                pending.append(value)
                continue
            number = pending.pop()
            if opened:
                opened[-1][2] += value - last
            last = value
            if number >= 0:
                if len(opened) < _MAX_OPEN:
                    opened.append([number, value, 0])
                else:
                    self.dropped += 1
                continue
            number = ~number
            if opened and opened[-1][0] == number:
                _, begin, self_ns = opened.pop()
            else:
                index = next((i for i in reversed(range(len(opened))) if opened[i][0] == number), None)
                if index is None:
                    self.dropped += 1
                    continue
                _, begin, self_ns = opened.pop(index)
            sums = self._sums.get((thread.name, number)) or self._new_sums(thread.name, number)
            duration = value - begin
            sums.count += 1
            sums.total_ns += duration
            sums.self_ns += self_ns
            if duration < sums.min_ns:
                sums.min_ns = duration
            if duration > sums.max_ns:
                sums.max_ns = duration
            sums.hist[duration.bit_length() - 1 if duration > 0 else 0] += 1
        thread.last_ns = last

    def _new_sums(self, thread: str, number: int) -> _Sums:
        if thread not in self._names:
            if len(self._names) >= _MAX_THREADS:
                return self._sums.setdefault((_OTHER_THREADS, number), _Sums())
            self._names.add(thread)
        return self._sums.setdefault((thread, number), _Sums())

    def _drain_until_stopped(self) -> None:
        period = _PERIOD
        while not self._stopped.wait(period):
            with self._lock:
                drained = self._drain()
            period = _PERIOD / 10 if drained > _MANY else _PERIOD

    def rows(self) -> tuple[RangeRow, ...]:
        """One row per range and thread, of the ranges that have ended; drains first."""
        with self._lock:
            self._drain()
            found = []
            for (thread, number), sums in self._sums.items():
                made = context.by_number(number)
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
                    )
                )
            return tuple(found)

    def stop(self) -> None:
        """Stop recording; what is open then is not counted. The rows stay. Stopping again does nothing."""
        global _active
        if _active is not self:
            return
        switch.listen(switch.RECORDER, False)
        _active = None
        calls.new_buffer = calls.throwaway
        self._stopped.set()
        with self._lock:
            self._drain()


dynamo.leave_alone(Recorder._new_buffer.__code__)

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
    # Lists of its own for each recorder: a range that outlives the last one ends in the last one's list.
    calls.tls, calls.new_buffer = recorder._tls, recorder._new_buffer
    recorder._drainer.start()
    switch.listen(switch.RECORDER, True)
    return recorder


def running() -> bool:
    """Whether a recorder runs."""
    return _active is not None
