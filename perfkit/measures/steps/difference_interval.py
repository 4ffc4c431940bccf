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
    means = []
    for times in (before, after):
        rows = len(times)
        length = math.isqrt(rows)
        starts = random.integers(0, rows, size=(_RESAMPLES, -(-rows // length)))
        drawn = ((starts[:, :, None] + np.arange(length)) % rows).reshape(_RESAMPLES, -1)
        cut = int(drawn.shape[1] * _TRIM)
        middle = np.argsort(times[:, 0][drawn], axis=1)[:, cut : drawn.shape[1] - cut]
        means.append(times[np.take_along_axis(drawn, middle, axis=1)].mean(axis=1))
    low, high = np.percentile(means[1] - means[0], [2.5, 97.5], axis=0)
    return low, high
