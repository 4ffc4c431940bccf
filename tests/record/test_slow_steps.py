"""Which training steps are slow."""

from __future__ import annotations

from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.triggers.slow_steps import SlowSteps
from perfkit.run.records import Phases


def closed(*walls_ms: float, validation_ms: float = 0) -> list[ClosedStep]:
    return [
        ClosedStep(number, "train", 0, round(ms * 1e6), Phases(validation=round(validation_ms * 1e6)))
        for number, ms in enumerate(walls_ms)
    ]


def test_a_step_is_slow_above_three_medians_and_ten_milliseconds_more() -> None:
    long, short = SlowSteps(3.0), SlowSteps(3.0)
    long.check(closed(*[100] * 16))
    short.check(closed(*[1] * 16))

    assert long.check(closed(100, 299)) is None
    assert long.check(closed(100, 305, 310)) == "slow step 2 (3.1 x the median)"
    assert short.check(closed(1, 10.5)) is None
    assert short.check(closed(1, 11.5)) == "slow step 1 (11.5 x the median)"


def test_no_step_is_slow_before_there_is_a_median_and_none_for_its_validation() -> None:
    slow = SlowSteps(3.0)

    assert slow.check(closed(*[100] * 15, 5000)) is None
    assert slow.check(closed(5000, validation_ms=4900)) is None
    assert slow.check(closed(5000)) is not None


def test_steps_that_stay_slow_are_slow_until_the_median_has_moved() -> None:
    slow = SlowSteps(2.0)
    slow.check(closed(*[100] * 64))
    told = [slow.check(closed(*[250] * 8)) is not None for _ in range(8)]

    assert told == [True] * 4 + [False] * 4  # the median has moved when half of the 64 are new
