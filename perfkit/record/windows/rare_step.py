"""One of the steps that come rarely and take long is traced by line, once per run: a rollout, a validation by hand.

The other extra steps are ordinary ones. Which step is the next of a rhythm is forecast from those before it.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable, Sequence
from statistics import median

from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.run.records import Phase, RareStep

#: A step is long from 1.5 times the typical one on, as in `perfkit.measures.steps.loop_time`.
_LONG = 1.5
#: Long steps of one rhythm before the next is traced. Two are enough if they are so many times as long as the typical
#: one and come in multiples of their distance, as those of ``if step % 50 == 0`` do: a short run has few.
_TIMES, _FEW, _MUCH_LONGER = 4, 2, 5.0
#: The share of all time that these take beyond the others; below it they are information only, see ``rare-steps``.
_SHARE = 0.15
#: Steps of which the typical one is the median.
_MAX_TYPICAL = 255
#: Steps that are traced until one was long.
_MAX_TRIES = 3
#: Lines and calls of modules that are traced of a step: what it does goes on in the same way, and tracing so many takes
#: 0.2 s each (measured on one CPU, with short lines and a small module).
_MAX_EVENTS, _MAX_CALLS = 300_000, 2_000


class RareStepForecast:
    """Forecasts the steps of a rhythm of long steps, from the newest ones: of all, or of the longest alone."""

    def __init__(self) -> None:
        #: The median time of a step; 0 before any has ended.
        self.typical_ns = 0.0
        self._walls: list[int] = []
        #: Number and time of the newest long steps, and of the longest ones: others may come in between.
        self._long: list[tuple[int, int]] = []
        self._longest: list[tuple[int, int]] = []
        #: One step of the rhythm, and its period.
        self._rhythm: tuple[int, int] | None = None

    def add(self, closed: Sequence[ClosedStep]) -> None:
        """These ordinary steps have ended."""
        walls = [one.wall_ns for one in closed]
        if len(self._walls) < _MAX_TYPICAL:
            self._walls.extend(walls[: _MAX_TYPICAL - len(self._walls)])
            self.typical_ns = median(self._walls)
        if not self.is_long(max(walls)):
            return
        new = [(one.step, one.wall_ns) for one in closed if self.is_long(one.wall_ns)]
        self._long = [*self._long, *new][-_TIMES:]
        self._longest = heapq.nlargest(2 * _TIMES, [*self._longest, *new], key=lambda one: one[1])
        # The longest of all may be another one, as a compilation.
        half_ns = self._longest[:2][-1][1] / 2
        longest = sorted(one for one in self._longest if one[1] > half_ns)[-_TIMES:]
        self._rhythm = self._rhythm_of(self._long) or self._rhythm_of(longest)

    def _rhythm_of(self, long: list[tuple[int, int]]) -> tuple[int, int] | None:
        if len(long) < _FEW:
            return None
        gaps = [after - step for (step, _), (after, _) in itertools.pairwise(long)]
        last, period = long[-1][0], min(gaps)
        each_ns = median(ns for _, ns in long) - self.typical_ns
        # A step of the rhythm is missing where a window was open.
        regular = period > 1 and all(gap % period == 0 for gap in gaps) and gaps.count(period) >= len(gaps) - 1
        if len(long) < _TIMES:
            # The steps count from 0 or from 1.
            regular &= last % period in (0, period - 1) and min(ns for _, ns in long) > _MUCH_LONGER * self.typical_ns
        if not regular or each_ns < _SHARE * (each_ns + period * self.typical_ns):
            return None
        return last, period

    def is_long(self, wall_ns: int) -> bool:
        """Whether a step of this time is long."""
        return wall_ns > _LONG * self.typical_ns

    def next_step(self, step: int) -> int:
        """The first step of the rhythm from ``step`` on; `sys.maxsize` as long as none is known."""
        if self._rhythm is None:
            return sys.maxsize
        seen, period = self._rhythm
        return step + (seen - step) % period


class RareStepTracer:
    """Traces the first rare step that can be foreseen.

    ``phase`` returns the running phase, ``ended_at`` when the step ended, between two steps.
    """

    def __init__(self, phase: Callable[[], Phase], ended_at: Callable[[], int | None] = lambda: None) -> None:
        self._phase = phase
        self._ended_at = ended_at
        self._forecast = RareStepForecast()
        self._tracer: LineTracer | None = None
        self._step = self._tries = 0
        #: Whether the running step is traced, whether the one that was last was long, and whether none follows.
        self._running = self._was_long = self._done = False

    def add(self, closed: Sequence[ClosedStep], *, timed: bool) -> None:
        """These steps have ended, all of them ordinary ones or one that may have been traced."""
        if self._done:
            return
        if timed:
            self._forecast.add(closed)
        elif self._running:
            self._was_long = self._forecast.is_long(closed[-1].wall_ns)
            self._done = self._was_long or self._tries == _MAX_TRIES

    @property
    def typical_ns(self) -> float:
        """The median time of an ordinary step; 0 before any has ended."""
        return self._forecast.typical_ns

    def next_step(self, step: int) -> int:
        """The first step from ``step`` on that `advance` must be called for."""
        return sys.maxsize if self._done or self._running else self._forecast.next_step(step)

    def advance(self, step: int) -> bool:
        """Step ``step`` begins; returns whether it is traced."""
        if self._done or self._forecast.next_step(step) != step:
            return False
        self._step, self._running = step, True
        self._tries += 1
        self._tracer = LineTracer(self._phase, max_events=_MAX_EVENTS, max_calls=_MAX_CALLS, ended_at=self._ended_at)
        self._tracer.start()
        return True

    def close(self) -> None:
        """End the traced step, if one runs."""
        if self._running and self._tracer is not None:
            self._tracer.stop()
        self._running = False

    @property
    def result(self) -> RareStep | None:
        """The lines of the traced step; None where there was none that was long."""
        if self._tracer is None or not self._was_long or self._running:
            return None
        return RareStep(step=self._step, lines=self._tracer.rows(), complete=self._tracer.complete)
