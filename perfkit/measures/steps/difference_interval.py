"""The interval of a difference between two runs' steps: a bootstrap over blocks of neighbouring steps."""

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
