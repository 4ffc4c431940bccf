"""The interval score: how good a predicted interval is, by its width and its misses together."""

from __future__ import annotations

#: A predicted saving promises to contain the measured one in 80 % of cases: a central interval with alpha = 0.2.
ALPHA = 0.2


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
