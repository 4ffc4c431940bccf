"""Medians, spreads and chances of matrices [ranks, steps] whose unknown values are NaN."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfkit.trace.intervals import Bools

Matrix = npt.NDArray[np.float32]
#: A normal distribution's standard deviation over its median absolute deviation, and over its mean one.
SIGMA, _SIGMA_OF_MEAN = 1.4826, 1.2533
#: With fewer steps the spread of one rank is not known by itself.
FEW_STEPS = 8


def middle_of(values: Matrix) -> Matrix:
    """The lower median of each column, of its known numbers: with two ranks the smaller of both."""
    # More than some hundred ranks do not change it, and sorting them takes long.
    chosen = values[:: max(1, values.shape[0] // 256)]
    known = np.isfinite(chosen).sum(axis=0)
    in_order = np.sort(chosen.T, axis=1)  # NaN last
    middle = np.maximum(known - 1, 0) // 2
    found: Matrix = in_order[np.arange(middle.size), middle]
    return found


def least_of(values: Matrix) -> Matrix:
    """The minimum of each column, of its known numbers; infinite where none is known."""
    least: Matrix = np.fmin.reduce(values, axis=0, initial=np.float32(np.inf))
    return least


def spread_of(values: npt.NDArray[np.floating]) -> float:
    """The standard deviation of most of these numbers: up to half of them may be anything."""
    return SIGMA * float(np.median(np.abs(values - np.median(values))))


def spread_of_each(off: Matrix) -> Matrix:
    """`spread_of` for each rank, from what its steps are off its median."""
    off = np.abs(off)
    spread = SIGMA * middle_of(off.T)
    few = np.isfinite(off).sum(axis=1) < FEW_STEPS
    if few.any():  # of two steps one is the median
        spread[few] = np.maximum(spread[few], _SIGMA_OF_MEAN * float(np.nanmean(off)))
    return spread


def means_of_steps(values: Matrix, known: Bools) -> Matrix:
    """The mean of the known values of each step."""
    found: Matrix = np.where(known, values, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return found.astype(np.float32)


def means_of_ranks(values: Matrix, known: Bools) -> Matrix:
    """The mean of the known values of each rank [ranks, 1]."""
    return means_of_steps(values.T, known.T)[:, None]


def by_chance(mine: int, all_: int, ranks: int) -> float:
    """The probability that one of the ranks has at least ``mine`` of ``all_`` long steps (Chernoff's bound)."""
    share, usual = mine / max(1, all_), 1 / ranks
    if share <= usual:
        return 1.0
    divergence = share * np.log(share / usual)
    if share < 1:
        divergence += (1 - share) * np.log((1 - share) / (1 - usual))
    return min(1.0, ranks * float(np.exp(-all_ * divergence)))
