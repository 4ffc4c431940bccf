"""How good predicted intervals are: their misses in half ranges, and width and misses together as one score."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: The share of cases in which an interval promises to hold the measured saving: the central 80 %.
COVERAGE = 0.8
#: The promised share of misses.
ALPHA = 0.2
#: Residuals of fewer programs than this have no 80 % quantile of their own: that of four is already their largest.
MIN_RESIDUALS = 5


def residual(low_ns: float, high_ns: float, measured_ns: float, scale: float = 1.0) -> float | None:
    """How far a measured saving lies from the middle of a range, in half ranges; None for an empty range.

    ``scale`` is the factor that the range was multiplied by.
    """
    half = (high_ns - low_ns) / 2 / scale
    return abs(measured_ns - (low_ns + high_ns) / 2) / half if half > 0 else None


def quantile(residuals: Sequence[float]) -> float:
    """What a further residual stays below with probability `COVERAGE`: the ceil(0.8 (n + 1))-th smallest of n.

    Raises:
        ValueError: there are none.
    """
    ordered = sorted(residuals)
    if not ordered:
        raise ValueError("a quantile needs at least one residual: none was measured")
    return ordered[min(len(ordered), math.ceil(COVERAGE * (len(ordered) + 1))) - 1]


def interval_score(low: float, high: float, value: float, alpha: float = ALPHA) -> float:
    """The score of the interval ``low`` .. ``high`` for the value that was then measured; lower is better.

    The interval's width, plus 2 / alpha times the distance by which the value missed the interval. In expectation it is
    lowest for the true quantiles alpha / 2 and 1 - alpha / 2, so neither a wide nor a narrow interval is favoured. The
    unit is that of the arguments.

    Source: T. Gneiting, A. E. Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal of the
    American Statistical Association 102 (2007), 359-378, equation 43.
    """
    missed = max(low - value, value - high, 0.0)
    return (high - low) + 2 / alpha * missed
