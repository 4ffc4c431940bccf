"""Where the level of a series of runs changes: the median step of each run, in order of start.

The fit is optimal partitioning (Jackson et al. 2005): the segments with the smallest sum of squares, plus a penalty for
each change: that of the Schwarz criterion, 2 log n times the noise's variance (Yao 1988), times `_PENALTY`.
The noise is estimated from differences of neighbours by their median absolute deviation, which changes of level do not
widen (as in Fryzlewicz 2014); runs that stand alone are drawn to their neighbours first (a Hampel filter). On times as
logarithms, a change is a share.

Judged on generated histories (`tests/history/generated_histories.py`): the numbers here were chosen on its tuning half.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

#: Minimum runs of a level: two slow runs in a row are often one busy machine. Also the minimum before a change.
MIN_RUNS = 3
#: Minimum runs in which a change is looked for.
MIN_HISTORY = 2 * MIN_RUNS
#: Smaller changes are not reported: between two runs of one program on one machine, clocks and memory layout alone make
#: a difference of 1 to 2%.
LEAST_CHANGE = 0.03
#: A change of level must exceed the noise of a single run by this factor: below it, runs vary by that much.
_TIMES_NOISE = 1.0
#: Times the Schwarz criterion, for the tails of the noise and for neighbours that are slow together (see above).
_PENALTY = 2.5
#: The noise is never taken to be smaller than this share: a clock's resolution, and histories of three equal runs.
_LEAST_NOISE = 0.003
#: Median absolute deviation -> standard deviation, of normal noise.
_MAD = 1.4826
#: Runs whose median a run is compared with (its own in the middle), and how far from it it may be, in noise.
_NEIGHBOURS, _FAR = 9, 2.0
#: In a level of fewer runs, each must lie on its side of the middle between both levels: of three runs, two that were
#: slow by chance would make a level.
_SHORT = 6
#: Two-sided 95% of the normal distribution.
_Z95 = 1.96


class LevelChange(NamedTuple):
    """A change before run number ``at``: by a share (0.1: 10% slower), with its 95% interval."""

    at: int
    share: float
    low: float
    high: float


class Levels(NamedTuple):
    """The changes in order, the noise of a single run (a share), and the smallest change that three runs would show.

    Both are None where there are too few runs.
    """

    changes: tuple[LevelChange, ...]
    noise: float | None
    visible: float | None


def find_changes(times: Floats) -> Levels:
    """Find where the level of positive ``times``, of shape (runs,), changes."""
    logs = np.log(np.asarray(times, np.float64))
    if len(logs) < MIN_HISTORY:
        return Levels((), None, None)
    noise = _noise(logs)
    calm = _without_lone(logs, noise)
    bounds = _partition(calm, noise)
    # Neighbours that are slow together, and a drift, show in the levels, not in the differences.
    noise = max(noise, _spread(np.concatenate([logs[a:b] - np.median(logs[a:b]) for a, b in pairwise(bounds)])))
    bounds = _partition(_without_lone(logs, noise), noise)
    bounds = _only_clear(logs, bounds, noise)
    changes = tuple(_change(logs, before, at, after, noise) for before, at, after in _triples(bounds))
    runs = len(logs) - MIN_RUNS
    visible = math.sqrt(_cost(len(logs), noise) * (1 / MIN_RUNS + 1 / runs))
    return Levels(changes, noise, max(LEAST_CHANGE, _TIMES_NOISE * noise, math.expm1(visible)))


def _cost(runs: int, noise: float) -> float:
    """The penalty of a change: by how much it must reduce the sum of squares."""
    return _PENALTY * 2 * math.log(runs) * noise * noise


def _spread(values: Floats) -> float:
    return _MAD * float(np.median(np.abs(values - np.median(values))))


def _noise(logs: Floats) -> float:
    """The noise of one run; also from runs three apart, because the load of a machine lasts over several."""
    lags = [lag for lag in (1, 3) if len(logs) > 2 * lag]
    return max(_LEAST_NOISE, *(_spread(logs[lag:] - logs[:-lag]) / math.sqrt(2) for lag in lags))


def _without_lone(logs: Floats, noise: float) -> Floats:
    """The series with each run at most `_FAR` noises from the median of its neighbours."""
    half = _NEIGHBOURS // 2
    medians = np.array([np.median(logs[max(0, at - half) : at + half + 1]) for at in range(len(logs))])
    return np.clip(logs, medians - _FAR * noise, medians + _FAR * noise)


def _partition(values: Floats, noise: float) -> list[int]:
    """The bounds of the cheapest segments of at least `MIN_RUNS` values, with 0 and the length."""
    count, penalty = len(values), _cost(len(values), noise)
    centred = values - values.mean()
    sums, squares = (np.concatenate(([0.0], np.cumsum(column))) for column in (centred, centred * centred))
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(count + 1, np.int64)
    for end in range(MIN_RUNS, count + 1):
        starts = np.arange(0, end - MIN_RUNS + 1)
        total = sums[end] - sums[starts]
        costs = best[starts] + squares[end] - squares[starts] - total * total / (end - starts) + penalty
        at = int(np.argmin(costs))
        best[end], last[end] = costs[at], starts[at]
    bounds = [count]
    while bounds[-1]:
        bounds.append(int(last[bounds[-1]]))
    return bounds[::-1]


def _only_clear(logs: Floats, bounds: list[int], noise: float) -> list[int]:
    """The bounds without changes that are too small or rest on single runs, the smallest first."""
    least = max(math.log1p(LEAST_CHANGE), _TIMES_NOISE * noise)
    while len(bounds) > 2:
        sizes = [abs(_step(logs, *three)) if _is_separate(logs, *three) else 0.0 for three in _triples(bounds)]
        smallest = int(np.argmin(sizes))
        if sizes[smallest] >= least:
            break
        del bounds[smallest + 1]
    return bounds


def _is_separate(logs: Floats, before: int, at: int, after: int) -> bool:
    """Whether each run of a short level lies on its side of the middle between both levels."""
    first, second = logs[before:at], logs[at:after]
    middle = (np.median(first) + np.median(second)) / 2
    rises = np.median(second) > np.median(first)
    return all(
        len(level) >= _SHORT or bool(np.all((level > middle) == above))
        for level, above in ((first, not rises), (second, rises))
    )


def _step(logs: Floats, before: int, at: int, after: int) -> float:
    return float(np.median(logs[at:after]) - np.median(logs[before:at]))


def _change(logs: Floats, before: int, at: int, after: int, noise: float) -> LevelChange:
    # The median of n normal values has pi/2 times the variance of their mean.
    error = _Z95 * noise * math.sqrt(math.pi / 2 * (1 / (at - before) + 1 / (after - at)))
    size = _step(logs, before, at, after)
    return LevelChange(at, math.expm1(size), math.expm1(size - error), math.expm1(size + error))


def _triples(bounds: list[int]) -> list[tuple[int, int, int]]:
    return list(zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True))
