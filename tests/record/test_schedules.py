"""Schedules: torch's terms with torch's meaning, a default that fits the run, and triggered cycles in between."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import perfkit
from perfkit.record.windows.schedules import Schedule, TriggeredSchedule, as_action, default_schedule

small = st.integers(0, 4)


@given(
    wait=small,
    warmup=small,
    active=st.integers(1, 4),
    repeat=small,
    skip_first=small,
    skip_first_wait=st.integers(
        0, 1 if "skip_first_wait" in inspect.signature(torch.profiler.schedule).parameters else 0
    ),
)
def test_a_schedule_has_the_same_action_as_torchs_in_every_step(**numbers: int) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about warmup=0
        # torch 2.4 has no skip_first_wait, as if it were 0.
        theirs = torch.profiler.schedule(
            **{name: of for name, of in numbers.items() if of or name != "skip_first_wait"}
        )
    ours = perfkit.schedule(**numbers)

    assert [ours(step) for step in range(40)] == [theirs(step) for step in range(40)]


@given(
    wait=small,
    warmup=small,
    active=st.integers(1, 4),
    repeat=small,
    skip_first=small,
    skip_first_wait=st.integers(0, 1),
    step=st.integers(0, 60),
)
def test_the_next_step_of_a_window_is_the_first_one_with_an_action(step: int, **numbers: int) -> None:
    schedule = Schedule(**numbers)
    used = (later for later in range(step, step + 20) if schedule.action(later) != "none")

    assert schedule.next_window(step) == next(used, sys.maxsize)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"wait": 1, "warmup": 1, "active": 0}, "active must be a whole number of at least 1, got 0"),
        ({"wait": -1, "warmup": 1, "active": 1}, "wait must be a whole number of at least 0, got -1"),
        ({"wait": 1, "warmup": 1.5, "active": 1}, "warmup must be a whole number of at least 0, got 1.5"),
        ({"wait": 1, "warmup": 0, "active": 1, "every_s": 0}, "every_s must be a time above 0 seconds, got 0"),
        ({"wait": True, "warmup": 1, "active": 1}, "wait must be a whole number"),
    ],
)
def test_invalid_numbers_are_refused(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(perfkit.UsageError, match=message):
        perfkit.schedule(**numbers)


def test_torchs_schedules_are_accepted() -> None:
    action = as_action(torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1))

    assert [action(step) for step in range(6)] == ["none", "warmup", "record", "save", "none", "none"]


def test_something_that_is_no_schedule_is_refused_before_the_first_step() -> None:
    with pytest.raises(perfkit.UsageError, match="schedule must be"):
        as_action(3)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(perfkit.UsageError, match=r"schedule\(0\) must return"):
        as_action(lambda step: "record")


@given(st.one_of(st.none(), st.integers(1, 100_000)))
def test_the_default_schedules_first_window_is_complete_within_30_steps_and_within_the_run(total: int | None) -> None:
    chosen = default_schedule(total)

    assert chosen.first_window_end <= min(30, total or 30)
    assert "save" in [chosen.action(step) for step in range(total or 30)]


def test_windows_by_time_come_at_their_interval(clock: Any) -> None:
    action = as_action(perfkit.schedule(wait=2, warmup=1, active=2, repeat=3, every_s=10))
    seen = []
    for step in range(40):
        seen.append(action(step))
        assert action(step) == seen[-1]
        clock.pass_ms(1000)

    assert [step for step, what in enumerate(seen) if what == "warmup"] == [2, 12, 22]
    assert [step for step, what in enumerate(seen) if what == "save"] == [4, 14, 24]


def test_a_schedule_by_time_is_refused_by_torchs_own_profiler_with_the_reason() -> None:
    with pytest.raises(perfkit.UsageError, match=r"needs perfkit\.profile"):
        perfkit.schedule(wait=1, warmup=1, active=1, every_s=5)(0)


def test_a_triggered_cycle_comes_between_those_of_the_schedule() -> None:
    own = perfkit.schedule(wait=6, warmup=1, active=2).action
    actions = TriggeredSchedule(own, warmup=1, active=2)
    actions.begin(1)

    assert [actions(step) for step in range(1, 9)] == [
        *("warmup", "record", "save", "none", "none"),
        *("warmup", "record", "save"),
    ]


def test_a_cycle_that_a_triggered_one_overlaps_is_skipped_and_the_next_is_complete() -> None:
    actions = TriggeredSchedule(perfkit.schedule(wait=3, warmup=1, active=3).action, warmup=1, active=3)
    actions.begin(2)  # until 5; the schedule would record 4 to 6

    assert [actions(step) for step in range(2, 6)] == ["warmup", "record", "record", "save"]
    assert [actions(step) for step in range(6, 14)] == [*["none"] * 4, "warmup", "record", "record", "save"]
    assert not actions.busy
