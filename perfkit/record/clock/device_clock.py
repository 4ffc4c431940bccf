"""Device time per phase: the step clock's boundaries as events on the device's stream, resolved later.

At each boundary a pooled event is recorded on the current stream. Steps later, when the device has passed it, the time
between two events is the device's time in the phase between them: the time on its stream, waits for the host included.
Nothing here ever waits: an event that is not ready is queried again some steps later, and a step has no device times
where the pool was empty or a CUDA graph was captured.

Not run on a GPU yet; tests use events that they move themselves.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from perfkit.run.records import Phase, Phases

#: Events created at the start: a step has 8 to 16 boundaries, a device is rarely more than 20 steps behind, and events
#: are free again every ten steps. Not in a step, because creating one takes a driver call.
POOL = 1024


class Event(Protocol):
    """The part of ``torch.cuda.Event(enable_timing=True)`` that is used here."""

    def record(self) -> None:
        """Mark this point of the current stream."""

    def query(self) -> bool:
        """Whether the device has passed the mark."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds on the device from this mark to ``end``."""


class DeviceClock:
    """Collects boundaries of steps, and returns the device times of finished ones."""

    def __init__(
        self, make_event: Callable[[], Event], *, capturing: Callable[[], bool] = lambda: False, pool: int = POOL
    ) -> None:
        self._free: list[Event] = [make_event() for _ in range(pool)]
        self._capturing = capturing
        self._open: list[tuple[Phase, Event]] = []
        self._lost = False
        self._waiting: deque[tuple[int, list[tuple[Phase, Event]], bool]] = deque()
        #: Steps whose boundaries could not all be marked.
        self.dropped = 0

    def mark(self, phase: Phase) -> None:
        """A phase ends here, on the device as on the host."""
        if not self._free or self._capturing():
            self._lost = True
            return
        event = self._free.pop()
        event.record()
        self._open.append((phase, event))

    def begin_step(self) -> None:
        """A step begins now; everything before belongs to none."""
        self._free.extend(event for _, event in self._open)
        self._open = []
        self._lost = False
        self.mark("other")  # the phase of a step's first mark is not used

    def end_step(self, step: int) -> None:
        """All boundaries of step ``step`` are marked."""
        self._waiting.append((step, self._open, self._lost))
        self._open = []

    def resolved(self) -> list[tuple[int, Phases | None]]:
        """The steps that the device has finished since the last call, in order; None where times are missing."""
        done: list[tuple[int, Phases | None]] = []
        while self._waiting:
            step, marks, lost = self._waiting[0]
            if marks and not marks[-1][1].query():
                break
            self._waiting.popleft()
            if lost or len(marks) < 2:
                self.dropped += 1
                done.append((step, None))
            else:
                done.append((step, _phases(marks)))
            self._free.extend(event for _, event in marks)
        return done

    def forget(self, before: int) -> None:
        """Drop the steps below ``before``, whose rows have been written without device times."""
        while self._waiting and self._waiting[0][0] < before:
            # The device may not have passed their events yet: recording those again is allowed, and nothing reads
            # them any more.
            self._free.extend(event for _, event in self._waiting.popleft()[1])


def _phases(marks: list[tuple[Phase, Event]]) -> Phases:
    times: dict[str, int] = {}
    for (_, begin), (phase, end) in itertools.pairwise(marks):
        times[phase] = times.get(phase, 0) + round(begin.elapsed_time(end) * 1e6)
    return Phases(**times)


def make_cuda_clock() -> DeviceClock:
    """A device clock for the current CUDA device."""
    import torch  # perfkit never imports torch before the program does

    cuda: Any = torch.cuda  # its events are untyped
    return DeviceClock(lambda: cuda.Event(enable_timing=True), capturing=torch.cuda.is_current_stream_capturing)
