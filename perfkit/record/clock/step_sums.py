"""Sums of the step clock's log: the times of each phase, step by step, or of many equal steps at once."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any

import msgspec

from perfkit.record.clock.intervals import COLUMNS, Interval
from perfkit.run.records import PHASES, Mode, Phase, Phases

_FORWARD = COLUMNS["forward"]
_VALIDATION = COLUMNS["validation"]
_UNDECIDED = COLUMNS["undecided"]
_AFTER_FETCH = COLUMNS["after fetch"]
_ZEROS = (0,) * len(COLUMNS)
#: A step in which only these took time has not begun to work.
_INACTIVE = {COLUMNS["data"], _VALIDATION, _UNDECIDED, _AFTER_FETCH}


class ClosedStep(msgspec.Struct, gc=False):
    """A finished step, as the clock measured it; ``thread_ns`` is a mean of several, see `Step`."""

    step: int
    mode: Mode
    start_ns: int
    wall_ns: int
    phases_ns: Phases
    thread_ns: int | None = None


class StepPattern:
    """The intervals of one step and the phase of each: steps of a loop are nearly all alike.

    The phase of each follows from the intervals alone, also where it was undecided for a while.
    """

    __slots__ = ("columns", "intervals", "mode", "size")

    def __init__(self, intervals: list[Interval], mode: Mode) -> None:
        self.intervals = intervals
        self.size = 2 * len(intervals)
        self.mode = mode
        columns = [_FORWARD if one.column == _AFTER_FETCH else one.column for one in intervals]
        undecided: list[int] = []
        for index, interval in enumerate(intervals):
            if columns[index] == _UNDECIDED:
                undecided.append(index)
            if interval.decides is not None:
                for waiting in undecided:
                    columns[waiting] = COLUMNS[interval.decides]
                undecided.clear()
        self.columns = tuple(columns)

    def steps_in(self, log: list[Any], at: int) -> int:
        """The number of consecutive steps in the log, from ``at`` on, that are like this one."""
        begin, intervals, size = at, self.intervals, self.size
        while log[at : at + size : 2] == intervals:
            at += size
        return (at - begin) // size


class StepSums:
    """Adds up the intervals of a log; ``closed`` has the steps that ended, ``times`` the unfinished step's columns.

    That step began at ``start_ns``; the last event was at ``last``.
    """

    def __init__(self) -> None:
        self.closed: list[ClosedStep] = []
        self.times = [0] * len(COLUMNS)
        self._known: set[Phase] = set()
        #: The phases of a step without any event: None for those that this loop does not show.
        self._blank: list[int | None] = []
        self.know(("forward", "other"))
        #: What the last two steps were like, if they were alike; the last one's intervals; whether no event of the
        #: running step is in ``times`` yet.
        self._pattern: StepPattern | None = None
        self._last_step: list[Interval] = []
        self._whole = True
        self._step = 0
        self.start_ns = self.last = 0

    def begin(self, now: int) -> None:
        """A step begins now; the unfinished one is forgotten."""
        self.times[:] = _ZEROS
        self._whole = True
        self.start_ns = self.last = now

    def know(self, phases: Iterable[Phase]) -> None:
        """The loop shows these phases: they are numbers from now on, 0 where they took no time."""
        self._known.update(phases)
        self._blank = [0 if name in self._known else None for name in PHASES]

    def is_active(self, log: list[Any], open_: list[Interval]) -> bool:
        """Whether anything but a fetch happened in the unfinished step: added up, at the end of the log, or open."""
        columns = [interval.column for interval in open_]
        for interval in reversed(log[::2]):
            if interval.mode is not None:
                break
            columns.append(interval.column)
        else:
            columns.extend(column for column, time in enumerate(self.times) if time)
        return not _INACTIVE.issuperset(columns)

    def add(self, log: list[Any], *, validating: bool) -> None:
        """Add up the whole log; with ``validating`` all its time is validation."""
        at = 0
        while at < len(log):
            pattern = self._pattern if self._whole and not validating else None
            alike = pattern.steps_in(log, at) if pattern is not None else 0
            if pattern is not None and alike:
                at = self._add_alike(pattern, log, at, alike)
            else:
                at = self._add_step(log, at, validating=validating)

    def _add_alike(self, pattern: StepPattern, log: list[Any], begin: int, steps: int) -> int:
        """Add ``steps`` steps of one pattern, from index ``begin`` of the log on; returns the index after them."""
        end = begin + steps * pattern.size
        ends = log[begin + 1 : end : 2]
        times = list(map(operator.sub, ends, (self.start_ns, *ends[:-1])))
        if min(times) < 0:
            # A clock that jumps back must not take time from a phase: this step by itself, then the next ones.
            return self._add_step(log, begin, validating=False)
        # All steps at once, one column per phase, at half the cost of step by step.
        events = len(pattern.columns)
        columns: list[Any] = [itertools.repeat(time) for time in self._blank]
        for event, phase in enumerate(pattern.columns):
            column = times[event::events]
            again = phase in pattern.columns[:event]
            columns[phase] = list(map(operator.add, columns[phase], column)) if again else column
        closes = ends[events - 1 :: events]
        starts = (self.start_ns, *closes[:-1])
        self.closed.extend(
            map(
                ClosedStep,
                itertools.count(self._step),
                itertools.repeat(pattern.mode),
                starts,
                map(operator.sub, closes, starts),
                map(Phases, *columns),
            )
        )
        self._step += steps
        self.start_ns = self.last = closes[-1]
        return end

    def _add_step(self, log: list[Any], begin: int, *, validating: bool) -> int:
        """Add from index ``begin`` of the log to the end of a step, or of the log; returns the index after that."""
        last, times = self.last, self.times
        for at in range(begin, len(log), 2):
            interval, now = log[at], log[at + 1]
            if now > last:
                times[_VALIDATION if validating else interval.column] += now - last
            last = now
            if interval.decides is not None:
                times[COLUMNS[interval.decides]] += times[_UNDECIDED]
                times[_UNDECIDED] = 0
                if interval.mode is not None:
                    intervals = log[begin : at + 2 : 2]
                    self.know(one.shown for one in intervals)
                    self._close(now, interval.mode)
                    if self._whole and intervals == self._last_step:
                        self._pattern = StepPattern(intervals, interval.mode)
                    self._last_step, self._whole = intervals, True
                    self.last = last
                    return at + 2
        self.know(one.shown for one in log[begin::2])
        self._whole = False
        self.last = last
        return len(log)

    def _close(self, now: int, mode: Mode) -> None:
        times = self.times
        times[_FORWARD] += times[_AFTER_FETCH]
        times[_AFTER_FETCH] = 0
        phases = Phases(*(time if blank is not None else None for time, blank in zip(times, self._blank, strict=False)))
        self.closed.append(ClosedStep(self._step, mode, self.start_ns, sum(times), phases))
        self._step += 1
        self.start_ns = now
        times[:] = _ZEROS

    def move_to_validation(self, since: list[int]) -> None:
        """Move the time that was added after ``since``, a copy of ``times``, to validation."""
        moved = sum(self.times) - sum(since) - self.times[_VALIDATION] + since[_VALIDATION]
        self.times[:] = [*since[:_VALIDATION], self.times[_VALIDATION] + moved, *since[_VALIDATION + 1 :]]
        self.know(("validation",))
