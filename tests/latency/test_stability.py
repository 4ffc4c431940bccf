"""When a measurement is stable, the likely cause if it is not, and which batch size is worth it."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.latency.stability import Conditions, drift, knee, likely_cause, percentile, settled, spread, stable

MS = 1_000_000
QUIET = Conditions(on_device=False, threads=1, cores=8, preemptions_per_s=0.0)


@given(st.integers(100, 300), st.integers(1, 10**10), st.randoms(use_true_random=False))
def test_percentiles_are_measured_values_in_order(count: int, largest: int, random: Random) -> None:
    samples = [random.randint(1, largest) for _ in range(count)]
    ordered = sorted(samples)
    found = [percentile(ordered, percent) for percent in (50, 90, 99)]

    assert None not in found
    assert all(value in samples for value in found)
    assert found == sorted(found, key=lambda value: value or 0)
    for percent, value in zip((50, 90, 99), found, strict=True):
        assert value is not None
        assert sum(sample <= value for sample in samples) * 100 >= percent * len(samples)


@pytest.mark.parametrize(
    ("count", "known"), [(1, [50]), (9, [50]), (10, [50, 90]), (99, [50, 90]), (100, [50, 90, 99])]
)
def test_a_percentile_needs_a_sample_beyond_it(count: int, known: list[int]) -> None:
    assert [percent for percent in (50, 90, 99) if percentile(range(1, count + 1), percent) is not None] == known


def test_percentiles_of_one_to_a_hundred() -> None:
    assert [percentile(range(1, 101), percent) for percent in (50, 90, 99)] == [50, 90, 99]


def test_warm_up_is_over_when_the_last_three_windows_agree() -> None:
    assert not settled([100, 100])
    assert not settled([200, 150, 100])
    assert settled([900, 105, 100, 110])


def test_constant_calls_are_stable_and_a_tail_alone_does_not_change_that() -> None:
    tail = [MS if i % 20 else 9 * MS for i in range(200)]

    assert stable([MS] * 200)
    assert stable(tail)
    assert spread(tail) == 0


def test_a_change_half_way_is_not_stable_even_where_the_median_hides_it() -> None:
    samples = [MS] * 120 + [2 * MS] * 80

    assert not stable(samples)
    assert drift(samples) == 1.0


def test_two_speeds_that_alternate_are_not_stable() -> None:
    samples = [MS, 2 * MS] * 100

    assert drift(samples) == 0
    assert not stable(samples)


def test_nine_calls_are_never_stable() -> None:
    assert not stable([MS] * 9)
    assert "only 9 calls in the time budget" in likely_cause([MS] * 9, QUIET)


RISING = [MS + 2000 * i for i in range(200)]
JUMPING = list(itertools.chain.from_iterable([MS] * 40 if part % 2 else [2 * MS] * 40 for part in range(5)))


@pytest.mark.parametrize(
    ("samples", "conditions", "words"),
    [
        (RISING, QUIET, "steadily slower: falling clocks"),
        (RISING[::-1], QUIET, "still becoming faster"),
        (JUMPING, QUIET._replace(threads=16), r"16 threads on 8 cores: torch.set_num_threads\(8\)"),
        (JUMPING, QUIET._replace(preemptions_per_s=400.0), "other processes preempted it 400 times per second"),
        (JUMPING, QUIET, "not visible in this process"),
        (JUMPING, QUIET._replace(on_device=True, threads=16), "other processes on the device"),
        (JUMPING, Conditions(on_device=False, threads=4), "not visible in this process"),
    ],
)
def test_the_likely_cause_follows_from_the_samples_and_the_conditions(
    samples: list[int], conditions: Conditions, words: str
) -> None:
    assert not stable(samples)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(likely_cause(samples, conditions))


sizes = st.lists(st.integers(1, 4096), min_size=2, max_size=8, unique=True)


@given(sizes, st.integers(1_000, 10**9))
def test_a_latency_that_does_not_grow_is_worth_the_largest_batch(batches: list[int], ns: int) -> None:
    close = [size for size in batches if size >= 2 * min(batches)] or [2 * min(batches)]

    assert knee(dict.fromkeys([min(batches), *close], ns)) == max(close)


@given(sizes, st.integers(1_000, 10**6))
def test_a_latency_that_grows_as_the_batch_is_worth_only_the_smallest(batches: list[int], ns: int) -> None:
    assert knee({size: size * ns for size in batches}) == min(batches)


@given(st.dictionaries(st.integers(1, 4096), st.integers(10**6, 10**10), min_size=2, max_size=8), st.integers(2, 50))
def test_the_knee_is_one_of_the_sizes_and_the_same_on_a_machine_that_is_slower(
    latencies: dict[int, int], factor: int
) -> None:
    assert knee(latencies) in latencies
    assert knee({size: factor * ns for size, ns in latencies.items()}) == knee(latencies)


def test_a_dip_between_does_not_hide_a_larger_batch_that_is_worth_it() -> None:
    assert knee({1: 100, 8: 120, 9: 200, 64: 300}) == 64
    assert knee({1: 100, 8: 120, 64: 950}) == 8
    assert knee({8: 100}) is None
