"""The interval score, with numbers worked out by hand."""

from __future__ import annotations

import pytest
from interval_score import interval_score


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
