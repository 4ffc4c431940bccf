"""Which steps are long in a fixed rhythm, and which at random."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

#: Steps that come more often are no exception: the typical step, without the longest tenth, has some of them.
_MIN_PERIOD = 3
#: Times that a rhythm must be seen: two are any two steps.
_MIN_TIMES = 3
#: The share of the steps in the rhythm that must be long: a short one in it was cut off, or nothing was to do.
_REGULAR = 0.8
#: Rhythms found by chance in one run of steps that are long at random.
_CHANCE = 0.01
#: A rhythm's next long step is among so many: others, of another rhythm or of none, may be between.
_NEAR = 4
#: Periods that are tried, the shortest ones: each costs a pass over the positions.
_MAX_PERIODS = 256
#: Limits above which a step is long, each twice the one before: 128 times the lowest one is the longest of steps.
_MAX_LEVELS = 8
#: Positions that are examined: the newest ones. Thousands of steps show every rhythm that can be examined.
_MAX_POSITIONS = 4_096


class Rhythm(NamedTuple):
    """Every ``period``-th step, from ``first`` on: the positions that are ``first`` modulo ``period``."""

    period: int
    first: int

    def holds(self, position: int) -> bool:
        """Whether a step at this position is one of them."""
        return position % self.period == self.first

    def within(self, start: int, end: int) -> int:
        """How many positions of [start, end) are in the rhythm."""
        return _upto(end, self) - _upto(start, self)


def _upto(end: int, rhythm: Rhythm) -> int:
    return max(0, -(-(end - rhythm.first) // rhythm.period))


def find_rhythms(seen: Sequence[int], beyond: Mapping[int, int]) -> list[Rhythm]:
    """The rhythms of the long steps among the positions ``seen``, the most frequent first.

    ``beyond`` has the long ones, with the time that each takes beyond the others. A rhythm counts where so many of its
    positions would not be long by chance, with all the rhythms that were tried; of the longest steps alone, few are
    long by chance. The next one is looked for among what the ones before leave over.
    """
    positions = sorted(seen)[-_MAX_POSITIONS:]
    left = {position: beyond[position] for position in positions if position in beyond}
    found: list[Rhythm] = []
    while len(left) >= _MIN_TIMES:
        rhythm = _next(positions, left)
        if rhythm is None:
            break
        found.append(rhythm)
        left = {position: ns for position, ns in left.items() if not rhythm.holds(position)}
        positions = [position for position in positions if not rhythm.holds(position)]
    return found


def rhythm_of_epochs(
    long: Iterable[int], last: int, *, began_long: bool = False, goes_on: bool = False
) -> Rhythm | None:
    """The rhythm of two or more long steps, where each comes as late after the one before as the first of them came.

    So does what a program does at each epoch, of which a short run has two or three. ``last`` is the last position.
    A single long one is that of two epochs of the same length where the program did as much in its first step
    (``began_long``: the first one was long as well) or after its last one (``goes_on``).
    """
    at = sorted(set(long))
    if len(at) == 1:
        half, rest = divmod(last + 1, 2)
        is_between = not rest and ((goes_on and at[0] in (half - 1, half)) or (began_long and at[0] == half))
        return Rhythm(half, at[0] % half) if is_between and half >= _MIN_PERIOD else None
    for period in (at[0], at[0] + 1):
        if period >= _MIN_PERIOD and at == list(range(at[0], last + 1, period)):
            return Rhythm(period, at[0] % period)
    return None


def _next(positions: Sequence[int], left: Mapping[int, int]) -> Rhythm | None:
    """The rhythm that explains most long steps; of equal ones the slowest, which has no other step in it."""
    start, span = positions[0], positions[-1] - positions[0] + 1
    mask = bytearray(span)
    for position in positions:
        mask[position - start] = 1
    limits = sorted({min(left.values()) * 2**power - 1 for power in range(_MAX_LEVELS)})
    tried = max(1, (span // _MIN_TIMES) ** 2 // 2) * len(limits)
    best: tuple[int, int] | None = None
    rhythm = None
    for limit in limits:
        long = sorted(position for position, ns in left.items() if ns > limit)
        for period in _periods(long, span // (_MIN_TIMES - 1)):
            hits = Counter(position % period for position in long)
            first, count = hits.most_common(1)[0]
            if count < _MIN_TIMES or (best is not None and (count, period) <= best):
                continue
            total = sum(mask[(first - start) % period :: period])
            others = (len(long) - count + 1) / (len(positions) - total + 1)
            if count >= _REGULAR * total and tried * _at_least(count, total, min(1.0, others)) < _CHANCE:
                best, rhythm = (count, period), Rhythm(period, first)
    return rhythm


def _periods(positions: Sequence[int], longest: int) -> list[int]:
    """Distances between a long step and one of the next few: a rhythm's period is among them."""
    distances = {after - at for i, at in enumerate(positions) for after in positions[i + 1 : i + 1 + _NEAR]}
    return sorted(one for one in distances if _MIN_PERIOD <= one <= longest)[:_MAX_PERIODS]


def _at_least(count: int, total: int, chance: float) -> float:
    """The probability of ``count`` or more of ``total`` where each has this chance."""
    return sum(math.comb(total, k) * chance**k * (1 - chance) ** (total - k) for k in range(count, total + 1))
