"""Listener: perfkit's own recorder, which keeps how often each range ran and how long, per thread.

Each thread appends to a list of its own, without a lock (`events` says what). `Recorder.drain` takes what
has been written and folds it into sums, so memory is bounded by the number of different ranges and
threads, not by how long a run is.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from perfkit.errors import UsageError
from perfkit.ranges import calls, context, dynamo, switch

if TYPE_CHECKING:
    # At run time only a recorder that starts needs them (numpy, msgspec), not every program with a range in it.
    from perfkit.ranges.events import Stream, Sums
    from perfkit.run.records import RangeRow

#: Seconds between two drains. Half a second of the densest program (a million ranges a second) is 50 MB of
#: events; twice a second costs nothing where there is little.
_PERIOD = 0.5
#: After a drain of this many values (half a million ranges a second) the next one follows ten times sooner.
_MANY = 1_000_000

#: Threads with rows of their own; those of further names share one. A program has a few kinds of threads, but
#: may start them again and again under numbered names.
_MAX_THREADS = 64
_OTHER_THREADS = "(other threads)"


class _Alive:
    """Lies in a thread's local storage and dies with the thread."""

    __slots__ = ("__weakref__",)


class _Thread:
    """A thread's events, and how far they have been read."""

    def __init__(self, buffer: list[int], stream: Stream, alive: _Alive) -> None:
        self.buffer = buffer
        self.stream = stream
        self.alive = weakref.ref(alive)


class Recorder:
    """Counts and times of every range from `start_recorder`, which makes it, until `stop`."""

    def __init__(self) -> None:
        from perfkit.ranges import events

        self._events = events
        self._dropped = 0
        self._tls = threading.local()
        self._threads: list[_Thread] = []
        self._sums: dict[tuple[str, int], Sums] = {}
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
        self._threads.append(_Thread(buffer, self._new_stream(name), alive))
        return buffer

    def drain(self) -> None:
        """Fold what has been written since the last drain into the sums; returns at once if a drain is under way."""
        if self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> int:
        """Read what every thread has written; how many values that were. Call it with the lock."""
        try:
            return self._read()
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end a training run, nor fill its memory
            switch.listen(switch.RECORDER, False)
            self._threads.clear()
            switch.tell(f"the recorder of ranges has stopped: {type(error).__name__}: {error}")
            return 0

    def _read(self) -> int:
        drained = 0
        for thread in self._threads[:]:
            ended = thread.alive() is None
            values = thread.buffer[:]
            # What the thread has appended meanwhile stays.
            del thread.buffer[: len(values)]
            drained += len(values)
            thread.stream.read(values)
            if ended:
                self._dropped += thread.stream.dropped + len(thread.stream.opened)
                self._threads.remove(thread)
        return drained

    def _new_stream(self, name: str) -> Stream:
        if name not in self._names and len(self._names) >= _MAX_THREADS:
            name = _OTHER_THREADS
        self._names.add(name)
        mine: dict[int, Sums] = {}

        def sums_of(number: int) -> Sums:
            if number not in mine:
                mine[number] = self._sums.setdefault((name, number), self._events.Sums())
            return mine[number]

        return self._events.Stream(sums_of)

    @property
    def dropped(self) -> int:
        """Ends without a begin, begins beyond the bound of ranges open at once, ranges open when their thread ended."""
        return self._dropped + sum(thread.stream.dropped for thread in self._threads)

    def _drain_until_stopped(self) -> None:
        period = _PERIOD
        while not self._stopped.wait(period):
            with self._lock:
                drained = self._drain()
            period = _PERIOD / 10 if drained > _MANY else _PERIOD

    def rows(self) -> tuple[RangeRow, ...]:
        """One row per range and thread, of the ranges that have ended; drains first."""
        from perfkit.run.records import RangeRow

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
            self._dropped = self.dropped
            # A range that is still open will write its end; that has no place here any more.
            self._threads.clear()


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


def _after_fork_in_child() -> None:
    # The child has no thread that drains, and its copy of the lock may be held by one that is not there.
    global _active
    if _active is not None:
        _active._lock = threading.Lock()
        _active._threads.clear()
        _active = None
        calls.new_buffer = calls.throwaway
        switch.listen(switch.RECORDER, False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def running() -> bool:
    """Whether a recorder runs."""
    return _active is not None
