"""The interval of a difference between two runs' steps: a bootstrap over blocks, and for a few steps Welch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

#: Resamples of the bootstrap: enough that the ends of a 95% interval move by less than a tenth of its width.
_RESAMPLES = 2000

#: Share of the steps left out at each end, as for `TypicalStep`: one checkpoint is not a slower step.
_TRIM = 0.10

#: Minimum of steps: fewer do not show how much steps differ.
MIN_STEPS = 8


#: Minimum of steps for Welch's interval, which is what a window has: two show no spread worth the name.
MIN_FEW_STEPS = 3
#: The 97.5% quantile of Student's t by degrees of freedom, 1 to 30; beyond it is close to the normal's 1.96.
_T = (
    *(12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def few_steps_interval(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> tuple[float, float] | None:
    """95% interval of mean(after) - mean(before) of a few steps; None with fewer than three on a side.

    Welch's interval: the two may spread differently. Its degrees of freedom are rounded down.
    """
    if min(before.size, after.size) < MIN_FEW_STEPS:
        return None
    difference = float(after.mean() - before.mean())
    parts = [float(side.var(ddof=1)) / side.size for side in (before, after)]
    if not sum(parts):
        return difference, difference
    squares = sum(part**2 / (side.size - 1) for part, side in zip(parts, (before, after), strict=True))
    freedom = max(1, int(sum(parts) ** 2 / squares))
    half = (_T[freedom - 1] if freedom <= len(_T) else 1.96) * math.sqrt(sum(parts))
    return difference - half, difference + half


def difference_interval(
    before: npt.NDArray[Any], after: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """95% interval of after - before, for each column of per-step times.

    Args:
        before: Float array of shape (steps, columns) in order of time; column 0 is the whole step, by which outliers
            are left out: in each resample the middle 80% of the steps are averaged.
        after: The same of the other run, with the same columns.

    Returns:
        Low and high ends, each of shape (columns,).

    Blocks are as long as the square root of the number of steps, because slow steps come together (another program
    runs, a cache fills): drawing single steps would underestimate that noise (Künsch 1989, the block bootstrap).
    """
    # A fixed seed: comparing the same two runs twice gives the same answer.
    random = np.random.default_rng(0)
    means = [_resampled_means(times, random) for times in (before, after)]
    low, high = np.percentile(means[1] - means[0], [2.5, 97.5], axis=0)
    return low, high


def _resampled_means(times: npt.NDArray[Any], random: np.random.Generator) -> npt.NDArray[np.float64]:
    """The means of each resample, of shape (resamples, columns).

    A resample is kept as the number of times that each step was drawn, in the order of the steps' times: its middle
    then follows from running sums, without sorting it, and one resample is in memory at a time.
    """
    rows = len(times)
    length = math.isqrt(rows)
    starts = random.integers(0, rows, size=(_RESAMPLES, -(-rows // length)))
    drawn = starts.shape[1] * length
    cut = int(drawn * _TRIM)
    order = np.argsort(times[:, 0])
    ordered = times[order].astype(np.float64)
    means = np.empty((_RESAMPLES, times.shape[1]))
    for resample, begin in zip(means, starts, strict=True):
        begun = np.bincount(begin, minlength=rows)
        # A block that begins near the end goes on at the beginning.
        begun = np.cumsum(np.concatenate((begun[rows - length :], begun)))
        upto = np.cumsum((begun[length:] - begun[:-length])[order])
        # Of the steps that were drawn, those in the middle.
        kept = np.diff(np.clip(upto, cut, drawn - cut), prepend=cut)
        resample[:] = kept.astype(np.float64) @ ordered / (drawn - 2 * cut)
    return means
