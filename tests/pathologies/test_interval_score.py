"""Residuals, their quantile and the interval score, with numbers worked out by hand."""

from __future__ import annotations

import random

import pytest
from interval_score import COVERAGE, interval_score, quantile, residual


@pytest.mark.parametrize(
    ("low", "high", "value", "expected"),
    [
        (10.0, 14.0, 12.0, 4.0),  # inside: the width alone
        (10.0, 14.0, 10.0, 4.0),  # both ends belong to the interval
        (10.0, 14.0, 14.0, 4.0),
        (10.0, 14.0, 9.0, 4.0 + 10 * 1.0),  # below: 2 / 0.2 = 10 times the distance
        (10.0, 14.0, 16.5, 4.0 + 10 * 2.5),  # above
        (12.0, 12.0, 12.0, 0.0),  # exact
        (0.0, 5.0, -1.0, 5.0 + 10 * 1.0),  # the correction made the step longer
    ],
)
def test_a_miss_costs_ten_times_its_distance_at_80_percent(
    low: float, high: float, value: float, expected: float
) -> None:
    assert interval_score(low, high, value) == pytest.approx(expected)


def test_a_higher_promise_makes_a_miss_more_expensive() -> None:
    assert interval_score(10, 14, 9, alpha=0.05) == pytest.approx(4 + 40)


def test_the_score_has_the_unit_of_its_arguments() -> None:
    assert interval_score(10e6, 14e6, 9e6) == pytest.approx(1e6 * interval_score(10, 14, 9))


def test_of_equally_placed_intervals_the_one_with_the_promised_coverage_scores_best() -> None:
    values = range(1, 101)  # each once: the central 80 % are 10.5 to 90.5

    def mean_score(half_width: float) -> float:
        return sum(interval_score(50.5 - half_width, 50.5 + half_width, value) for value in values) / len(values)

    assert min((10, 20, 30, 40, 45, 50, 80), key=mean_score) == 40


def test_a_residual_is_the_distance_from_the_middle_in_half_ranges() -> None:
    assert residual(4, 8, 9) == 1.5
    assert residual(4, 8, 9, scale=2) == 3.0
    assert residual(5, 5, 9) is None


def test_the_quantile_of_some_residuals_holds_a_further_one_in_the_promised_share() -> None:
    draw = random.Random(0)
    held = [draw.expovariate(1) <= quantile([draw.expovariate(1) for _ in range(19)]) for _ in range(4_000)]

    assert sum(held) / len(held) == pytest.approx(COVERAGE, abs=0.03)


def test_a_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one residual"):
        quantile([])
