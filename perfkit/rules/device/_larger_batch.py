"""What a larger batch asks for besides memory: another learning rate."""

from __future__ import annotations

#: Linear scaling: Goyal et al. 2017, "Accurate, Large Minibatch SGD" (arXiv 1706.02677), with a warm-up of some epochs.
#: Square root: Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms" (2205.10287).
#: Both are a start for a search, and hold up to a size that depends on the problem.
LEARNING_RATE = (
    "A batch k times as large needs a new learning rate: try k times the old one with SGD (Goyal et al. 2017), the "
    "square root of k times with Adam (Malladi et al. 2022)."
)
