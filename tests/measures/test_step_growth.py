"""Growth of the step: found where the program does more in each step, not where the machine gets slower."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perfkit.measures.results.loop import StepGrowth
from perfkit.measures.steps.step_growth import measure_step_growth
from perfkit.run.merging import merged_in_blocks
from perfkit.run.records import Phases, Step

MS = 1_000_000


def run(
    backward: Callable[[int], float], forward: Callable[[int], float], count: int = 160, noise: float = 0.1, **more: Any
) -> list[Step]:
    """Steps whose phases take these times in ms, with noise that lengthens both alike."""
    chance, rows, start = random.Random(3), [], 0
    for number in range(count):
        slower = 1 + abs(chance.gauss(0, noise))
        times = {"backward": round(backward(number) * slower * MS), "forward": round(forward(number) * slower * MS)}
        fields = {name: value(number) for name, value in more.items()}
        wall = sum(times.values())
        rows.append(Step(step=number, start_ns=start, wall_ns=wall, phases_ns=Phases(**times), **fields))
        start += wall
    return rows


def constant(_: int) -> float:
    return 5.0


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.25])
def test_a_backward_that_grows_with_each_step_is_found_with_its_phase_and_its_mean_excess(noise: float) -> None:
    found = measure_step_growth(run(lambda n: 5 + 0.2 * n, constant, noise=noise))

    assert found is not None
    assert found.phase == "backward"
    assert abs(found.first_ns - 10 * MS) < (0.05 + noise) * 10 * MS
    assert abs(found.excess_ns - 0.2 * 80 * MS) < (0.1 + noise) * 16 * MS
    assert abs(found.ns_per_step - 0.2 * MS) < (0.1 + noise) * 0.2 * MS
    assert found.level_ns(-5) == found.first_ns
    assert found.level_ns(10**6) == found.last_ns


def test_quadratic_growth_and_growth_of_a_fifth_are_found() -> None:
    assert measure_step_growth(run(lambda n: 5 + 0.01 * n * n, constant)) is not None
    assert measure_step_growth(run(lambda n: 5 + 0.02 * n, constant, noise=0.03)) is not None


def test_over_more_steps_the_mean_excess_is_what_the_slope_makes_of_it() -> None:
    found = measure_step_growth(run(lambda n: 5 + 0.2 * n, constant, count=200, noise=0.0))

    assert found is not None
    assert found.mean_excess_ns(found.steps) == found.excess_ns
    assert abs(found.mean_excess_ns(2000) - 0.2 * 1000 * MS) < 0.02 * 200 * MS


@pytest.mark.parametrize(
    "level",
    [
        lambda n: 1.0,
        lambda n: 2.0 - min(1.0, n / 30),  # a clock that rises
        lambda n: 1.0 + min(0.6, n / 50),  # heat: it ends
        lambda n: 1.0 if n < 80 else 1.8,  # another program starts
        lambda n: 1.0 + 0.3 * (n // 55),  # one after the other
        lambda n: 1.0 + 0.01 * n,  # heat until the end: all phases alike
    ],
    ids=["constant", "warm-up", "heat", "another program", "several programs", "all phases alike"],
)
def test_a_machine_that_changes_its_speed_is_no_growth(level: Callable[[int], float]) -> None:
    rows = run(lambda n: 5 * level(n), lambda n: 5 * level(n), noise=0.25)

    assert measure_step_growth(rows) is None


def test_a_program_with_one_phase_grows_where_nearly_each_step_is_longer_than_all_before() -> None:
    assert measure_step_growth(run(lambda n: 5 + 0.2 * n, lambda n: 0.0, noise=0.03)) is not None


def test_batches_that_grow_are_no_growth() -> None:
    rows = run(lambda n: 5 + 0.2 * n, constant, batch_elements=lambda n: 100 + 4 * n)

    assert measure_step_growth(rows) is None


def test_too_few_steps_show_no_growth() -> None:
    assert measure_step_growth(run(lambda n: 5 + 0.2 * n, constant, count=20)) is None
    assert measure_step_growth([]) is None


def test_merged_rows_with_rare_steps_in_their_mean_are_no_shrinking_and_hide_no_growth() -> None:
    def rows(slope: float) -> list[Step]:
        made = run(lambda n: 5 + slope * n + (100 if n % 10 == 0 else 0), constant, count=1600, noise=0.02)
        return [*merged_in_blocks(made[:800], 8), *made[800:]]

    grown: StepGrowth | None = measure_step_growth(rows(0.02))
    assert measure_step_growth(rows(0.0)) is None
    assert grown is not None
    assert abs(grown.excess_ns - 16 * MS) < 0.15 * 16 * MS


def busy_run(other: Callable[[int], float], seed: int, count: int = 127) -> list[Step]:
    """Steps on a machine whose other programs slow them for some steps at a time, each phase a bit differently."""
    chance, rows, start, load = random.Random(seed), [], 0, 1.0
    for number in range(count):
        load = max(1.0, 0.9 * load + 0.1 * chance.choice((1.0, 1.0, 3.0, 6.0)) + chance.gauss(0, 0.3))
        phases = {"forward": 10.0, "backward": 15.0, "other": other(number)}
        times = {name: round(ms * load * chance.lognormvariate(0, 0.3) * MS) for name, ms in phases.items()}
        rows.append(Step(step=number, start_ns=start, wall_ns=sum(times.values()), phases_ns=Phases(**times)))
        start += rows[-1].wall_ns
    return rows


def test_a_phase_that_grows_is_found_where_other_programs_slow_all_phases_of_some_steps() -> None:
    found = [measure_step_growth(busy_run(lambda n: 1 + 0.2 * n, seed)) for seed in range(40)]

    assert sum(one is not None and one.phase == "other" for one in found) >= 25


def test_equal_steps_on_a_busy_machine_are_no_growth() -> None:
    assert not any(measure_step_growth(busy_run(lambda n: 5.0, seed)) for seed in range(300))


def test_a_rest_that_becomes_faster_is_no_growth_of_the_phase_that_stays() -> None:
    assert measure_step_growth(run(constant, lambda n: 20 / (1 + 0.05 * n), noise=0.03)) is None


def test_an_agent_whose_episodes_last_longer_does_not_grow_but_what_it_walks_over_in_each_does() -> None:
    def length(step: int) -> int:
        return 10 + step // 2

    calls = {"model_calls": length, "input_elements": lambda n: 4 * length(n)}

    longer = run(lambda n: 0.3 * length(n), lambda n: 0.5 * length(n), noise=0.1, **calls)
    assert measure_step_growth(longer) is None

    history = run(lambda n: 0.3 * length(n), lambda n: 0.5 * length(n) * (1 + n / 80), noise=0.1, **calls)
    found = measure_step_growth(history)

    assert found is not None
    assert found.phase == "forward"
    assert found.calls == pytest.approx(50)
    assert found.last_ns == pytest.approx(50 * (0.3 + 1.5) * MS, rel=0.15)


def test_inputs_that_grow_are_no_growth_where_no_loader_gives_them() -> None:
    rows = run(
        lambda n: 5 + 0.2 * n, constant, model_calls=lambda n: 2, input_elements=lambda n: 2 * 8 * (32 + n)
    )  # fmt: skip

    assert measure_step_growth(rows) is None


def disturbed(thread: Callable[[int], float], other: Callable[[int], float]) -> list[Step]:
    """Steps of this processor time in ms, three to a reading; other programs take ``other`` times as much beside it."""
    rows, start = [], 0
    for number in range(240):
        own = thread(number // 3 * 3) * MS
        wall = round(own * (1 + other(number)))
        phases = Phases(forward=wall // 3, backward=wall - wall // 3)
        rows.append(Step(step=number, start_ns=start, wall_ns=wall, thread_ns=round(own), phases_ns=phases))
        start += wall
    return rows


def test_growth_that_other_programs_hide_in_the_times_of_steps_is_found_in_the_processor_time() -> None:
    chance = random.Random(5)
    wild = [chance.choice([0.1, 0.4, 3.0, 5.0]) * (2 if 60 <= n < 150 else 1) for n in range(240)]
    rows = disturbed(lambda n: (5 + 0.05 * n) * (1 + 0.1 * chance.random()), wild.__getitem__)

    without = [msgspec.structs.replace(row, thread_ns=None) for row in rows]
    assert measure_step_growth(without) is None
    found = measure_step_growth(rows)
    assert found is not None
    assert abs(found.first_ns - 5 * MS) < 1 * MS
    assert abs(found.last_ns - 17.5 * MS) < 3 * MS


def test_a_step_that_other_programs_disturb_and_that_computes_as_much_as_ever_does_not_grow() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        wild = [chance.choice([0.1, 0.4, 3.0, 5.0]) * (2 if 60 <= n < 150 else 1) for n in range(240)]
        rows = disturbed(lambda n: 5 * (1 + 0.3 * chance.random()), wild.__getitem__)  # noqa: B023 - called here

        assert measure_step_growth(rows) is None, seed


def in_rounds(length: int, slope: float = 0.1) -> Callable[[int], float]:
    return lambda n: 5 + slope * (n % length)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_growth_that_begins_again_at_equal_distances_is_found_with_the_steps_at_which_it_does(noise: float) -> None:
    found = measure_step_growth(run(in_rounds(60), constant, count=170, noise=noise))

    assert found is not None
    assert found.restarts == pytest.approx((0, 60, 120), abs=4)
    assert found.phase == "backward"
    assert abs(found.first_ns - 10 * MS) < (0.1 + noise) * 10 * MS
    assert abs(found.level_ns(118) - found.level_ns(58)) < 0.1 * found.level_ns(58)
    assert found.level_ns(62) < 0.8 * found.level_ns(58)
    # The mean of a round, however many follow.
    assert found.mean_excess_ns(10_000) == found.excess_ns == pytest.approx(0.1 * 29 * MS, rel=0.2 + noise)


@pytest.mark.parametrize(
    "time",
    [
        lambda n: 10.0 if (n // 40) % 2 else 5.0,
        lambda n: 5 + 0.1 * (n % 60 if n < 60 else (n - 60) % 25),
        lambda n: 5 + 0.1 * (60 - n % 60),
    ],
    ids=["stages of other work", "at unequal distances", "steps that get shorter"],
)
def test_steps_that_get_shorter_at_once_without_growth_in_a_rhythm_are_none(time: Callable[[int], float]) -> None:
    assert measure_step_growth(run(time, constant, count=170)) is None


def test_a_machine_that_gets_slower_in_rounds_is_no_growth() -> None:
    slower = in_rounds(60, 0.05)

    assert measure_step_growth(run(lambda n: slower(n), lambda n: slower(n), count=170)) is None
