"""Device time per phase: the step clock's boundaries as events on one stream, resolved later.

At each boundary a pooled event is recorded on the stream that was current when the step began, whatever stream or
device is current by then. So a step's events are in order, and the time between two of them is the time of that stream
in the phase, waits for the host and for other streams included. Steps later, when the device has passed the last one,
the times are read. Nothing here ever waits: a step that is not ready is queried again some steps later, and it has no
device times where the pool was empty or a CUDA graph was captured.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from typing import Any

from perfkit import _clock
from perfkit.ranges.device_events import GRAPH_CAPTURES, DeviceEvent, DeviceEvents
from perfkit.run.records import Phase, Phases

#: Events per device: a step has 8 to 16 boundaries, a device is rarely more than 20 steps behind, and events are free
#: again every ten steps.
POOL = 1024

_Marks = list[tuple[Phase, DeviceEvent]]


class DeviceClock:
    """Collects boundaries of steps, and returns the device times of finished ones.

    An error of CUDA ends it, and is kept in `problem`.
    """

    def __init__(self, events: DeviceEvents, *, pool: int = POOL) -> None:
        self._events = events
        self._pool = pool
        #: Device -> events that are not in use, and how many there are.
        self._unused: dict[int, list[DeviceEvent]] = {}
        self._made: dict[int, int] = {}
        #: The stream of this step, None where it has no device times; and the unused events of its device.
        self._stream: Any = None
        self._free: list[DeviceEvent] = []
        self._open: _Marks = []
        self._waiting: deque[tuple[int, list[DeviceEvent], _Marks, bool]] = deque()
        self._marks = 0
        self._mark_ns = 0.0
        #: Steps whose boundaries could not all be marked.
        self.dropped = 0
        #: Why there are no device times any more.
        self.problem: str | None = None

    # -- in a step

    def begin_step(self) -> None:
        """A step begins now; everything before belongs to none."""
        self._free.extend(event for _, event in self._open)
        self._open = []
        self._stream = None
        if self.problem is not None or self._events.capturing():
            return
        try:
            stream = self._events.current_stream()
            self._free = self._unused.setdefault(stream.device_index, [])
            self._stream = stream
        except Exception as error:  # noqa: BLE001 - timing must not break training
            self._give_up(error)
        self.mark("other")  # the phase of a step's first mark is not used

    def mark(self, phase: Phase) -> None:
        """A phase ends here, on the device as on the host."""
        stream = self._stream
        if stream is None:
            return
        try:
            event = None if self._events.capturing() else self._free.pop() if self._free else self._new(stream)
            if event is None:
                self._stream = None
                return
            event.record(stream)
            self._open.append((phase, event))
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def end_step(self, step: int) -> None:
        """All boundaries of step ``step`` are marked."""
        self._marks += len(self._open)
        self._waiting.append((step, self._free, self._open, self._stream is not None))
        self._open = []

    def _new(self, stream: Any) -> DeviceEvent | None:
        made = self._made.get(stream.device_index, 0)
        if made >= self._pool:
            return None
        self._made[stream.device_index] = made + 1
        return self._events.new()

    def _give_up(self, error: Exception) -> None:
        self._stream = None
        self._open = []
        self.problem = f"steps have no device times from here on: {type(error).__name__}: {error}"

    # -- later

    def resolved(self) -> list[tuple[int, Phases | None]]:
        """The steps that the device has finished since the last call, in order; None where times are missing."""
        if not self._waiting or self._events.capturing() or not GRAPH_CAPTURES.hold():
            return []
        done: list[tuple[int, Phases | None]] = []
        try:
            while self._waiting:
                step, free, marks, whole = self._waiting[0]
                phases = None
                try:
                    if whole and self.problem is None:
                        if not marks[-1][1].query():
                            break
                        phases = _phases(marks)
                except Exception as error:  # noqa: BLE001 - as above
                    self._give_up(error)
                self._waiting.popleft()
                free.extend(event for _, event in marks)
                self.dropped += phases is None
                done.append((step, phases))
        finally:
            GRAPH_CAPTURES.release()
        return done

    def forget(self, before: int) -> None:
        """Drop the steps below ``before``, whose rows have been written without device times."""
        while self._waiting and self._waiting[0][0] < before:
            _, free, marks, _ = self._waiting.popleft()
            # The device may not have passed their events yet: recording those again is allowed, and nothing reads
            # them any more.
            free.extend(event for _, event in marks)

    # -- what it costs

    def calibrate(self) -> None:
        """Measure the time of a mark on this machine, in a step of eight."""
        scratch = DeviceClock(self._events)
        best = sys.maxsize
        for _ in range(5):  # the minimum of five: the machine does other work too
            began = _clock.now_ns()
            scratch.begin_step()
            for _ in range(7):
                scratch.mark("other")
            best = min(best, _clock.now_ns() - began)
        self._mark_ns = best / 8

    @property
    def own_ns(self) -> int:
        """The host's time for all marks so far."""
        return round(self._marks * self._mark_ns)


def _phases(marks: _Marks) -> Phases:
    times: dict[str, int] = {}
    for (_, begin), (phase, end) in itertools.pairwise(marks):
        times[phase] = times.get(phase, 0) + round(begin.elapsed_time(end) * 1e6)
    return Phases(**times)
