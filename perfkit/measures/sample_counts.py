"""How many samples show how long something takes."""

from __future__ import annotations

import math

#: A sampled time has this many samples at least: then its error is a third.
MIN_SAMPLES = 10
#: Or this many, where they show a share: a short run has no more. Four of twelve are a tenth or more with 95% certainty
#: (the lower end of Wilson's interval for a share, one-sided: 1.645 deviations).
FEW_SAMPLES = 4
_CERTAIN = 1.645


def show_share(samples: int, total: int, share: float) -> bool:
    """Whether ``samples`` of ``total`` are enough for an amount: many, or fewer that are certainly ``share`` of all."""
    if samples >= MIN_SAMPLES:
        return True
    if samples < FEW_SAMPLES:
        return False
    total = max(total, samples)  # a damaged file may hold fewer
    found, per = samples / total, _CERTAIN**2 / total
    low = (found + per / 2 - math.sqrt(per * (found * (1 - found) + per / 4))) / (1 + per)
    return low >= share
