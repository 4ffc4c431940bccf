"""Which of a run's windows are kept: a schedule may open one every few seconds for weeks.

All are kept until there are more than a person looks at. From then on a window is written if it is slower than any
before, or if the newest one is old and writing has taken little of the run so far; others are dropped unwritten. For
each one that is written, the one that adds least is removed: of the slowest, the newest and the most typical ones
some stay each. What a trigger opened stays in any case: its number has a limit of its own.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

import msgspec

from perfkit import _clock

#: Windows that are kept of a schedule without an end: four of the slowest, four of the newest, four typical ones. A
#: person compares two or three.
KEEP = 12
#: The maximum that is kept of a schedule that says how many it opens: each has a row in rank.json, which is rewritten
#: every 30 s.
MAX_KEEP = 256
#: Maximum size of all their files. A window of a large model is 10 MB, so that this is a hundred of them.
MAX_BYTES = 2**30
#: Beyond `KEEP` windows, the newest is written while writing has taken less than this share of the run.
_WRITING_SHARE = 0.01
#: So much slower than all others a window must be to be written as the slowest. In a run that becomes slower with each
#: window, each would be the slowest otherwise.
_SLOWER = 1.05
#: Why a window of the schedule opened, as `perfkit.run.records.Window.reason`.
BY_SCHEDULE = "schedule"
#: Times of windows by which the typical one is known.
_TIMES = 512


class RecordedWindow(msgspec.Struct, frozen=True):
    """A window that is over, with the wall time of one of its steps."""

    index: int
    first_step: int
    last_step: int
    reason: str
    step_ns: float
    #: Why it is not complete; None where it is.
    problem: str | None = None

    @property
    def scheduled(self) -> bool:
        """Whether the schedule opened it."""
        return self.reason == BY_SCHEDULE


class WindowSelection:
    """The windows that are kept, the oldest first; ``keep`` of the schedule."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = min(keep, MAX_KEEP)
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._began_ns = _clock.now_ns()
        self.kept: list[RecordedWindow] = []
        #: Windows that were recorded and not written, written and removed again, and not recorded at all because the
        #: one before was still being written.
        self.dropped = self.removed = self.skipped = 0

    def add(self, window: RecordedWindow, writing_ns: int) -> bool:
        """A window is over; returns whether it is to be written. Writing has taken ``writing_ns`` so far."""
        self._times.append(window.step_ns)
        if window.scheduled and not self._tells_more(window, writing_ns):
            self.dropped += 1
            return False
        self.kept.append(window)
        return True

    def _tells_more(self, window: RecordedWindow, writing_ns: int) -> bool:
        scheduled = self._scheduled()
        if len(scheduled) < self._keep or window.step_ns > _SLOWER * max(one.step_ns for one in scheduled):
            return True
        return writing_ns < _WRITING_SHARE * (_clock.now_ns() - self._began_ns)

    def _scheduled(self) -> list[RecordedWindow]:
        return [one for one in self.kept if one.scheduled]

    def take_surplus(self, size: int, failed: Callable[[int], bool]) -> RecordedWindow | None:
        """The window whose files are to be removed, None where all may stay.

        All files have ``size`` bytes; ``failed`` returns whether a window could not be written.
        """
        scheduled = self._scheduled()
        # At least the newest stays, whatever its size.
        if len(scheduled) <= (self._keep if size <= MAX_BYTES else 1):
            return None
        each = max(1, len(scheduled) // 3)
        typical_ns = statistics.median(self._times)
        slowest = sorted(scheduled, key=lambda one: -one.step_ns)[:each]
        others = [one for one in scheduled[:-each] if one not in slowest] or scheduled[:-1]
        least = max(others, key=lambda one: (failed(one.index), abs(one.step_ns - typical_ns)))
        self.kept.remove(least)
        self.removed += 1
        return least

    @property
    def sentence(self) -> str | None:
        """What was not kept, and why; None where nothing was lost."""
        lost = []
        if self.dropped or self.removed:
            lost.append(
                f"{self.dropped + self.removed:,} windows were not kept: of a schedule's, at most {self._keep} and "
                f"{MAX_BYTES >> 20} MiB stay, the slowest, the newest and typical ones"
            )
        if self.skipped:
            lost.append(f"{self.skipped:,} windows were not recorded: the one before was still being written")
        return "; ".join(lost) or None
