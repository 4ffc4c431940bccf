"""The interval of a difference between two runs: what it holds, and what it costs with the number of steps."""

from __future__ import annotations

import math
import time
import tracemalloc

import numpy as np
import numpy.typing as npt

from perfkit.measures.steps.difference_interval import difference_interval


def steps(count: int, mean: float, seed: int) -> npt.NDArray[np.float64]:
    """Times of steps with a long tail and of one phase of them."""
    whole = np.random.default_rng(seed).gamma(4, mean / 4, count)
    return np.stack((whole, whole / 2), axis=1)


def by_sorting(times: npt.NDArray[np.float64], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The means of the resamples whose blocks begin at ``starts``, each made and sorted as the definition says."""
    means = []
    for begin in starts:
        length = math.isqrt(len(times))
        drawn = [int(start + at) % len(times) for start in begin for at in range(length)]
        drawn.sort(key=lambda at: times[at, 0])
        cut = int(len(drawn) * 0.1)
        means.append(times[drawn[cut : len(drawn) - cut]].mean(axis=0))
    return np.array(means)


def test_the_interval_is_that_of_resamples_that_are_sorted_one_by_one() -> None:
    before, after = steps(57, 100, 1), steps(83, 130, 2)
    random = np.random.default_rng(0)
    means = []
    for times in (before, after):
        length = math.isqrt(len(times))
        means.append(by_sorting(times, random.integers(0, len(times), size=(2000, -(-len(times) // length)))))

    low, high = difference_interval(before, after)
    expected = np.percentile(means[1] - means[0], [2.5, 97.5], axis=0)
    np.testing.assert_allclose((low, high), expected, rtol=1e-9)
    assert low[0] < 30 < high[0]


def test_its_memory_is_that_of_one_resample_and_its_time_linear() -> None:
    seconds = []
    for count in (4_000, 16_000):
        times = steps(count, 100, 3)
        started = time.process_time()
        difference_interval(times, times)
        seconds.append(time.process_time() - started)
    tracemalloc.start()
    difference_interval(times[:4_000], times[:4_000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert seconds[1] < 8 * seconds[0]
    assert peak < 6e6  # 2,000 resamples of so many steps took 200 MB
