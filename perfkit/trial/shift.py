"""How much shorter one program's step is than another one's, from their times in pairs of blocks, with an interval.

Two things make two runs of the same program differ. One is the machine's other load, which changes from block to block;
the bootstrap shows it. The other stays as long as the processes live: where the memory of each lies, and on which core
it runs. A single pair of processes cannot show that; A/A comparisons can, and `floor_of` says how much it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfkit._format import share_of, share_range

#: Pairs of blocks below which nothing is claimed: a bootstrap over fewer has too few different samples.
MIN_PAIRS = 8
#: How often a change is looked at before it is given up.
LOOKS = 3
#: The interval of one look. Three looks at 98.3 % are together wrong in at most 5 % (Bonferroni).
CONFIDENCE = 1 - 0.05 / LOOKS
#: How often three looks together may claim a saving of equal programs: then fifty such searches have at most one in
#: 91 % of cases, where a rate of one in fifty would have two or more in every fourth.
_FALSE_CLAIMS = 0.01
#: Samples of the bootstrap: its standard error is within 3 %.
_SAMPLES = 1000
#: What two processes of one program differ by persistently, before anything is known about this one: the standard
#: deviation of the logarithm, and how many of this program's own comparisons it counts for. Chosen, not fitted: too few
#: A/A comparisons of benchmarks/bench_try.py have been made.
_OFFSET, _OFFSET_WEIGHT = 0.015, 4
#: The share of A/A comparisons whose persistent difference exceeds the floor, on either side.
_EXCEEDED = 0.02
#: Relative precision of the times: equal blocks have no bootstrap error.
_ROUNDING = 1e-6
#: Pairs of processes that a claim needs. One pair shows one persistent difference, which may be large: of two processes
#: of one program with 8 million weights, one took 45 ms per step and the other 98, by how the system gave out memory.
_MIN_PROCESS_PAIRS = 2

#: What the looks so far have shown; "undecided": another one may show more.
Decision = Literal["faster", "slower", "no-difference", "undecided"]


class Blocks(NamedTuple):
    """Mean time of a step of each program, ns, by pair of blocks: those of a pair ran right after one another.

    With ``long_steps``, rare long steps, as those that begin an epoch, have a part of the time: it is the mean time of
    a step that is compared then, which they are in, and not the typical one.
    """

    first: list[float]
    second: list[float]
    long_steps: bool = False


class Shift(NamedTuple):
    """What the second program saves of the first one's step, as a share (0.5: half; negative: it is slower).

    ``chance`` is the probability that equal programs show so much, or more, on this side.
    """

    saved: float
    low: float
    high: float
    pairs: int
    chance: float = 0.0


def shift_of(
    blocks: Sequence[Blocks], *, confidence: float = CONFIDENCE, floor: float = 0.0, seed: int = 0
) -> Shift | None:
    """The Hodges-Lehmann shift of the logarithms of the times, with a bootstrap interval.

    Where `Blocks.long_steps`, it is the logarithm of the ratio of the mean times. Several comparisons of the same two
    programs are pooled: the estimate is the mean of theirs, weighted by pairs. Pairs are drawn anew within each
    comparison; the interval has the width of Student's t for as many pairs. A persistent difference of each comparison
    adds to it: as large as ``floor`` stands for, or as the comparisons differ from each other, where that is more.

    Args:
        blocks: Those of each comparison.
        confidence: Of the interval; the default is that of one look of three, which together have 95 %.
        floor: `floor_of` the program, where each comparison had processes of its own; 0 where one was switched.
        seed: Of the bootstrap.

    Sources: Hodges and Lehmann (1963), Annals of Mathematical Statistics 34, 598-611. Efron and Tibshirani (1993), An
    Introduction to the Bootstrap, chapters 6 and 12.

    Returns:
        None with fewer than `MIN_PAIRS` pairs.
    """
    compared = [one for one in blocks if one.first]
    pairs = sum(len(one.first) for one in compared)
    if pairs < MIN_PAIRS:
        return None
    weights = np.array([len(one.first) / pairs for one in compared])
    shifts = np.array([_shifts(one, np.arange(len(one.first))[None])[0] for one in compared])
    chance = np.random.default_rng(seed)
    drawn = sum(
        weight * _shifts(one, chance.integers(0, len(one.first), size=(_SAMPLES, len(one.first))))
        for weight, one in zip(weights, compared, strict=True)
    )
    offset = _offset_of(floor)
    if len(shifts) > 1 and floor:
        offset = max(offset, float(np.std(shifts, ddof=1)))
    # A bootstrap draws from the pairs that there are, which vary less than those that could be: n / (n - 1).
    variance = float(np.var(drawn)) * pairs / (pairs - 1) + offset**2 * float(weights @ weights)
    error = max(math.sqrt(variance), _ROUNDING)
    shift = float(weights @ shifts)
    width = _t_quantile(1 - (1 - confidence) / 2, pairs - 1) * error
    # A higher ratio of times is a lower saving.
    saved, low, high = (-math.expm1(each) for each in (shift, shift + width, shift - width))
    return Shift(saved, low, high, pairs, _t_tail(abs(shift) / error, pairs - 1))


def floor_of(comparisons: Sequence[Blocks]) -> float:
    """The share below which nothing may be claimed, from A/A comparisons in processes of their own.

    At most one A/A comparison in fifty differs persistently by more. Few comparisons show little about that, so what is
    known of other programs counts too (a scaled inverse chi-squared prior of the variance).
    """
    shifts = [one for one in map(_shift_alone, comparisons) if one is not None]
    count = _OFFSET_WEIGHT + len(shifts)
    variance = (_OFFSET_WEIGHT * _OFFSET**2 + sum(each**2 for each in shifts)) / count
    return -math.expm1(-_t_quantile(1 - _EXCEEDED / 2, count) * math.sqrt(variance))


def decided(shift: Shift | None, floor: float, look: int, *, switched: bool = False) -> Decision:
    """What the comparisons up to look ``look`` (1 to `LOOKS`) have shown.

    Args:
        shift: Of all these comparisons; None where they have too few blocks.
        look: The number of the last comparison.
        floor: `floor_of` the program.
        switched: Whether one process was switched. Else a claim needs several pairs of processes.
    """
    if shift is not None and (switched or look >= _MIN_PROCESS_PAIRS or abs(shift.saved) < floor):
        if shift.chance < _FALSE_CLAIMS / LOOKS and shift.low > 0 and shift.saved > floor:
            return "faster"
        if shift.chance < _FALSE_CLAIMS / LOOKS and shift.high < 0 and shift.saved < -floor:
            return "slower"
        if -floor < shift.low and shift.high < floor:
            return "no-difference"
    return "no-difference" if look >= LOOKS else "undecided"


def shown_saving(shift: Shift) -> str:
    """``41% (95% interval 38 to 44%)``."""
    return f"{share_of(shift.saved)} (95% interval {share_range(shift.low, shift.high)})"


def shown_cost(shift: Shift) -> str:
    """The same for a change that makes the step longer."""
    return f"{share_of(-shift.saved)} (95% interval {share_range(-shift.high, -shift.low)})"


def _shift_alone(blocks: Blocks) -> float | None:
    """The logarithm of the ratio of one comparison; None where it has too few pairs."""
    if len(blocks.first) < MIN_PAIRS:
        return None
    return float(_shifts(blocks, np.arange(len(blocks.first))[None])[0])


def _shifts(blocks: Blocks, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    """The logarithm of the ratio of the times, from the pairs of blocks in each row of ``drawn``."""
    first, second = np.asarray(blocks.first), np.asarray(blocks.second)
    if not blocks.long_steps:
        return _hodges_lehmann(np.log(second / first)[drawn])
    shifts: NDArray[np.float64] = np.log(second[drawn].mean(axis=1) / first[drawn].mean(axis=1))
    return shifts


def _hodges_lehmann(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of the means of all pairs of values in each row, each value with itself included."""
    rows, columns = np.triu_indices(samples.shape[1])
    # A part at a time: 4000 samples of 60 values have 7 million such means.
    parts = np.array_split(samples, len(samples) // 256 + 1)
    return np.concatenate([np.median((part[:, rows] + part[:, columns]) / 2, axis=1) for part in parts])


def _t_quantile(probability: float, freedom: int) -> float:
    """Student's t; Abramowitz and Stegun (1964), 26.7.5, within 0.2 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(probability)
    return (
        z
        + (z**3 + z) / 4 / freedom
        + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / freedom**2
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / freedom**3
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160 / freedom**4
    )


def _t_tail(value: float, freedom: int) -> float:
    """The probability that Student's t exceeds ``value``; Wallace (1959), Annals of Mathematical Statistics 30."""
    z = math.sqrt(freedom * math.log1p(value**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return NormalDist().cdf(-z)


def _offset_of(floor: float) -> float:
    """The standard deviation of the persistent differences of which `_EXCEEDED` are above ``floor``, on either side."""
    return -math.log1p(-floor) / NormalDist().inv_cdf(1 - _EXCEEDED / 2)
