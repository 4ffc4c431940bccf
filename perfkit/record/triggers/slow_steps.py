"""The trigger "slow-step": when a step took so much longer than those before it that a window opens."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from perfkit.record.clock.step_sums import ClosedStep

#: A slow step must also take this much longer than the median: a time slice of the operating system is some
#: milliseconds, which are many times a short step.
_AT_LEAST_NS = 10_000_000
#: The median is of this many last steps: enough that one unusual step is not half of them, and few enough to follow a
#: training whose steps slowly get longer. Without the minimum number of steps there is no median.
_RECENT, _MIN_RECENT = 64, 16
#: The phases of a step that are long on purpose from time to time.
_PLANNED = ("validation", "checkpoint")


class SlowSteps:
    """Finds training steps that take ``times`` the median of those before them."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._recent: deque[int] = deque(maxlen=_RECENT)

    def check(self, closed: Sequence[ClosedStep]) -> str | None:
        """The slowest of these steps, if it is slow, in words; all of them count as recent afterwards."""
        walls = [step.wall_ns for step in closed if step.mode == "train"]
        found = None
        if walls and len(self._recent) >= _MIN_RECENT:
            median = statistics.median_high(self._recent)
            bound = max(self._times * median, median + _AT_LEAST_NS)
            # Some hundreds of steps come at once: they are only checked one by one if the longest is above the bound.
            if max(walls) > bound:
                found = self._slowest(closed, bound, median)
        self._recent.extend(walls[-_RECENT:])
        return found

    def _slowest(self, closed: Sequence[ClosedStep], bound: float, median: int) -> str | None:
        time_ns, number = max(
            (step.wall_ns - sum(getattr(step.phases_ns, phase) or 0 for phase in _PLANNED), -step.step)
            for step in closed
            if step.mode == "train"
        )
        return f"slow step {-number} ({time_ns / max(1, median):.1f} x the median)" if time_ns > bound else None
