"""Changes of level in series of runs: judged on generated histories whose changes are known."""

from __future__ import annotations

import time

import numpy as np
import pytest

from perfkit.history.change_points import MIN_HISTORY, find_changes
from tests.history.generated_histories import JUDGING, generate, judge


def test_of_histories_without_a_change_nearly_none_has_one() -> None:
    judged = judge(generate(JUDGING, 11, changes=0, count=120))

    assert judged.false_histories <= 0.04, judged


def test_changes_above_four_times_the_noise_are_found_and_below_twice_are_mostly_left() -> None:
    judged = judge(generate(JUDGING[:3], 12, changes=1, count=120))

    assert judged.misses[2] <= 0.06, judged
    assert judged.false_histories <= 0.05, judged
    assert judged.late <= 0.05, judged


def test_the_interval_of_a_change_holds_its_true_size() -> None:
    held = found = 0
    for history in generate(JUDGING[:1], 13, changes=1, count=120):
        for change in find_changes(history.times).changes:
            found += 1
            held += change.low <= history.planted[0][1] <= change.high

    assert found > 60
    assert held / found >= 0.9


@pytest.mark.parametrize("runs", range(MIN_HISTORY))
def test_too_few_runs_have_neither_changes_nor_noise(runs: int) -> None:
    assert find_changes(np.linspace(1e6, 9e6, runs)) == ((), None, None)


def test_equal_runs_have_no_change_and_two_slow_runs_are_none_yet() -> None:
    assert find_changes(np.full(20, 4e7)).changes == ()
    assert find_changes(np.array([4e7] * 20 + [6e7] * 2)).changes == ()

    (change,) = find_changes(np.array([4e7] * 20 + [6e7] * 3)).changes
    assert (change.at, round(change.share, 2)) == (20, 0.5)


def test_a_change_smaller_than_the_noise_of_one_run_is_not_reported_however_many_runs_show_it() -> None:
    times = 4e7 * np.random.default_rng(3).normal(1, 0.08, 400)
    times[200:] *= 1.05

    levels = find_changes(times)

    assert levels.changes == ()
    assert levels.noise is not None
    assert 0.06 < levels.noise < 0.1
    assert levels.visible is not None
    assert levels.visible > 0.1


def test_ten_times_as_many_runs_take_less_than_two_hundred_times_as_long() -> None:
    def took(runs: int) -> float:
        times = np.random.default_rng(0).normal(4e7, 1e6, runs)
        began = time.perf_counter()
        find_changes(times)
        return time.perf_counter() - began

    assert min(took(2000) for _ in range(2)) < 200 * min(took(200) for _ in range(3))
