"""The slope of one number by another one, of which single steps that another program disturbed change nothing."""

from __future__ import annotations

import numpy as np


def median_slope(by: np.ndarray, values: np.ndarray) -> float:
    """The median slope of all pairs (Theil 1950, Sen 1968) whose ``by`` differ; ``by`` must not be all the same."""
    apart = by[:, None] - by[None, :]
    pairs = np.triu(apart != 0, 1)
    return float(np.median((values[:, None] - values[None, :])[pairs] / apart[pairs]))
