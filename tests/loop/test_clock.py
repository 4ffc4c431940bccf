"""The step and phase clock, on a fake clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit import _clock
from perfkit.loop.clock import ClosedStep, StepClock
from perfkit.run.records import PHASES


def started(closed: list[ClosedStep]) -> StepClock:
    clock = StepClock(closed.append)
    clock.start()
    return clock


def test_a_nested_phase_takes_its_time_out_of_the_phase_around_it(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = started(closed)
    steps.enter("optimizer")
    clock.pass_ms(3)
    steps.enter("forward")
    clock.pass_ms(5)
    steps.leave("forward")
    clock.pass_ms(2)
    steps.leave("optimizer")
    steps.close()

    assert closed[0].phases_ns.optimizer == 5_000_000
    assert closed[0].phases_ns.forward == 5_000_000
    assert closed[0].wall_ns == 10_000_000


def test_time_after_a_fetch_is_forward_and_after_a_backward_is_other(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = started(closed)
    steps.enter("data")
    clock.pass_ms(4)
    steps.leave("data")
    clock.pass_ms(7)
    steps.enter("backward")
    clock.pass_ms(6)
    steps.leave("backward")
    clock.pass_ms(1)
    steps.close()

    phases = closed[0].phases_ns
    assert (phases.data, phases.forward, phases.backward, phases.other) == (4_000_000, 7_000_000, 6_000_000, 1_000_000)


def test_a_second_forward_after_an_optimizer_step_is_forward_once_a_backward_follows(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = started(closed)
    steps.enter("optimizer")
    steps.leave("optimizer")
    clock.pass_ms(9)
    steps.enter("backward")
    clock.pass_ms(2)
    steps.leave("backward")
    steps.close()

    assert closed[0].phases_ns.forward == 9_000_000
    assert closed[0].phases_ns.other == 0


def test_what_perfkit_does_between_steps_lands_in_no_step(clock: Any) -> None:
    closed: list[ClosedStep] = []

    def slow(step: ClosedStep) -> None:
        clock.pass_ms(50)
        closed.append(step)

    steps = StepClock(slow)
    steps.start()
    clock.pass_ms(3)
    steps.close()
    clock.pass_ms(4)
    steps.close()

    assert [step.wall_ns for step in closed] == [3_000_000, 4_000_000]


def test_a_phase_that_never_was_is_null_and_a_known_one_is_zero(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = started(closed)
    steps.knows("backward")
    clock.pass_ms(1)
    steps.close()

    assert closed[0].phases_ns.checkpoint is None
    assert closed[0].phases_ns.backward == 0


def test_ending_a_phase_that_is_not_open_changes_nothing(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = started(closed)
    clock.pass_ms(2)
    steps.leave("optimizer")
    steps.close()

    assert closed[0].wall_ns == closed[0].phases_ns.other == 2_000_000


events = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "close"]), st.sampled_from(PHASES), st.integers(0, 10**9)), max_size=60
)


@given(events)
def test_the_phases_of_every_step_sum_to_its_wall_time_whatever_the_order_of_events(
    happenings: list[tuple[str, str, int]],
) -> None:
    now = 0
    closed: list[ClosedStep] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_clock, "now_ns", lambda: now)
        steps = started(closed)
        for what, phase, passed in happenings:
            now += passed
            if what == "close":
                steps.close()
            else:
                getattr(steps, what)(phase)
        steps.close()

    for step in closed:
        assert sum(getattr(step.phases_ns, phase) or 0 for phase in PHASES) == step.wall_ns
    assert sum(step.wall_ns for step in closed) == now
