"""The step and phase clock, on a fake clock."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit import _clock
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.run.records import PHASES


def started(closed: list[ClosedStep]) -> StepClock:
    clock = StepClock(closed.extend)
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

    def slow(steps: list[ClosedStep]) -> None:
        clock.pass_ms(50)
        closed.extend(steps)

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


def phases_of(step: ClosedStep) -> list[int]:
    return [getattr(step.phases_ns, phase) or 0 for phase in PHASES]


@given(events, st.integers(2, 9))
def test_summing_up_many_steps_at_once_gives_what_summing_up_each_would(
    happenings: list[tuple[str, str, int]], batch: int
) -> None:
    now = 0
    each: list[ClosedStep] = []
    many: list[ClosedStep] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_clock, "now_ns", lambda: now)
        clocks = StepClock(each.extend), StepClock(many.extend, batch=batch)
        meters = [{phase: clock.meter(phase) for phase in PHASES} for clock in clocks]
        for clock in clocks:
            clock.start()
        for what, phase, passed in happenings:
            now += passed
            for clock, meter in zip(clocks, meters, strict=True):
                if what == "close":
                    clock.close()
                elif clock is clocks[1]:
                    meter[phase][what == "leave"]()  # the other way to say the same
                else:
                    getattr(clock, what)(phase)
        clocks[1].hand_over()

    assert [phases_of(step) for step in many] == [phases_of(step) for step in each]
    assert [(step.step, step.start_ns, step.wall_ns) for step in many] == [
        (step.step, step.start_ns, step.wall_ns) for step in each
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(-2, 9), min_size=7, max_size=7)), max_size=12))
def test_steps_that_are_alike_are_summed_up_as_each_by_itself(steps: list[tuple[int, list[int]]]) -> None:
    kinds = (
        ("data", "backward", "optimizer"),
        ("data", "optimizer", "backward"),
        ("data", "backward", "optimizer", "backward"),
        ("logging",),
    )
    now = 0
    each: list[ClosedStep] = []
    many: list[ClosedStep] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_clock, "now_ns", lambda: now)
        clocks = StepClock(each.extend), StepClock(many.extend, batch=999)
        clocks[1].due = 999
        for clock in clocks:
            clock.start()
        for kind, passed in steps:
            for _ in range(3):  # alike
                for phase, time in zip(kinds[kind], passed, strict=False):
                    for what in ("enter", "leave"):
                        now += time  # now and then backwards
                        for clock in clocks:
                            getattr(clock, what)(phase)
                for clock in clocks:
                    clock.close()
        clocks[1].hand_over()

    assert [phases_of(step) for step in many] == [phases_of(step) for step in each]
    assert [(step.step, step.start_ns, step.wall_ns) for step in many] == [
        (step.step, step.start_ns, step.wall_ns) for step in each
    ]


def test_closing_with_a_fetch_is_closing_and_then_fetching(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = StepClock(closed.extend, batch=2)
    steps.start()
    for _ in range(4):
        clock.pass_ms(3)
        steps.close_with_fetch()
        clock.pass_ms(2)
        steps.leave("data")
    steps.hand_over()

    times = [(step.phases_ns.data, step.wall_ns) for step in closed]
    assert times == [(None, 3_000_000), *[(2_000_000, 5_000_000)] * 3]


def test_steps_are_handed_over_when_they_are_due_or_late(clock: Any) -> None:
    batches: list[list[int]] = []
    steps = StepClock(lambda closed: batches.append([step.step for step in closed]), batch=4)
    steps.start()
    for _ in range(9):
        steps.close()
    steps.due_ns = clock.now + 1
    clock.pass_ms(1)
    steps.close()

    assert batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]


def test_a_step_without_end_does_not_fill_the_memory(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = started(closed)
    enter, leave = steps.meter("backward")
    for _ in range(20_000):
        enter()
        leave()
        steps.enter("logging")
        steps.leave("logging")
    clock.pass_ms(2)

    assert len(steps._log) < 10_000
    steps.close()
    assert closed[0].wall_ns == 2_000_000


def test_a_step_that_only_fetched_is_none_yet_and_any_other_phase_makes_it_one() -> None:
    steps = StepClock(lambda closed: None, batch=9)
    steps.start()
    steps.close()
    steps.enter("data")
    steps.leave("data")
    assert not steps.active
    steps.enter("backward")
    assert steps.active
    steps.leave("backward")
    assert steps.active
    steps.close()
    assert not steps.active


@pytest.fixture
def thread_ms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processor time of the thread in ms, set by hand."""
    now = [0]
    monkeypatch.setattr(time, "thread_time_ns", lambda: now[0] * 1_000_000)
    return now


def test_a_step_has_the_processor_time_of_its_thread_and_short_steps_the_mean_of_several(
    clock: Any, thread_ms: list[int]
) -> None:
    closed: list[ClosedStep] = []
    steps = StepClock(closed.extend, lambda step: thread_ms.__setitem__(0, thread_ms[0] + 100) is None, batch=5)
    steps.due = 5
    steps.start()
    for wall, own in ((4, 3), (4, 2), (0.1, 1), (0.1, 2), (4, 3), (4, 1), (4, 2)):
        clock.pass_ms(wall)
        thread_ms[0] += own
        steps.close()
    steps.drop()

    assert [one.thread_ns for one in closed] == [
        3_000_000,
        2_000_000,
        2_000_000,
        2_000_000,
        2_000_000,
        1_000_000,
        2_000_000,
    ]


def test_processor_time_of_steps_that_end_in_another_thread_is_not_known(clock: Any) -> None:
    closed: list[ClosedStep] = []
    steps = started(closed)
    steps.due = 1
    thread = threading.Thread(target=steps.close)
    thread.start()
    thread.join()
    steps.close()

    assert closed[0].thread_ns is None
