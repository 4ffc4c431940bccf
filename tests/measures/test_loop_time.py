"""The loop's time by what it was spent on: parts that sum to it exactly, and rare steps that a rhythm proves."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit._location import Location
from perfkit.measures.results.loop import LoopPart, LoopTime, ordinal
from perfkit.measures.steps.loop_time import measure_loop_time
from perfkit.measures.steps.typical_step import measure_mean_step
from perfkit.run.merging import merged_in_blocks
from perfkit.run.records import LineCaller, LineRow, Lines, Phase, Phases, RareStep, Step, TracedLine

MS = 1_000_000


def steps(*times: float, phase: str = "other", noise: float = 0.03, **more: Any) -> list[Step]:
    """Rows of these times in ms, each with 6 ms of backward at the most and the rest in ``phase``."""
    chance, rows, start = random.Random(1), [], 0
    for number, ms in enumerate(times):
        wall = round(ms * MS * (1 + chance.uniform(-noise, noise)))
        backward = min(wall, 6 * MS)
        phases = Phases(**{"backward": backward, phase: wall - backward})
        rows.append(Step(step=number, start_ns=start, wall_ns=wall, phases_ns=phases, **more))
        start += wall
    return rows


def every(period: int, long: float, count: int = 200, short: float = 10.0) -> list[float]:
    return [long if number % period == period - 1 else short for number in range(count)]


def measured(rows: list[Step], lines: Lines | None = None, *, after_ms: float = 0) -> LoopTime:
    found = measure_loop_time(rows, lines, rows[-1].start_ns + rows[-1].wall_ns + round(after_ms * MS))
    assert found is not None
    return found


def line(number: int, function: str, samples: int, phase: Phase = "other", **more: Any) -> LineRow:
    return LineRow(
        file="train.py", line=number, function=function, owner="user", phase=phase, samples=samples, host_ns=0, **more
    )


ROWS = st.lists(
    st.builds(
        lambda wall, gap, validation, checkpoint, **more: (wall, gap, validation, checkpoint, more),
        wall=st.integers(0, 10**9),
        gap=st.integers(0, 10**8),
        validation=st.none() | st.integers(0, 10**9),
        checkpoint=st.none() | st.integers(0, 10**9),
        steps=st.sampled_from([1, 1, 1, 2, 16]),
        mode=st.sampled_from(["train", "train", "train", "validation", "predict"]),
        kind=st.sampled_from(["timed", "timed", "timed", "window", "dry"]),
        gc_ns=st.none() | st.integers(0, 10**9),
        compile_ns=st.none() | st.integers(0, 10**9),
    ),
    max_size=80,
)


@given(ROWS, st.integers(0, 79))
@settings(max_examples=200)
def test_the_parts_sum_to_the_time_from_the_first_start_to_the_last_end_exactly(rows: list[Any], traced: int) -> None:
    made, number, start = [], 0, 0
    for wall, gap, validation, checkpoint, more in rows:
        phases = Phases(validation=validation, checkpoint=checkpoint, other=wall)
        made.append(Step(step=number, start_ns=start, wall_ns=wall, phases_ns=phases, **more))
        number, start = number + more["steps"], start + wall + gap
    if traced < len(made):
        made[traced] = msgspec.structs.replace(made[traced], kind="lines")
    found = measure_loop_time(made, Lines(period_ns=MS, steps=9, rare_step=RareStep(step=traced)))

    if found is not None:
        assert found.total_ns == made[-1].start_ns + made[-1].wall_ns - made[0].start_ns
        assert sum(part.total_ns for part in found.parts) == found.total_ns
        assert all(part.total_ns >= 0 for part in found.parts)


def test_a_rollout_in_every_16th_step_is_a_part_with_its_period_and_what_it_takes_beyond_a_step() -> None:
    found = measured(steps(*every(16, 400)))

    [rollout] = found.rare
    assert (rollout.every, rollout.steps, rollout.phase) == (16, 12, "other")
    assert 38 < (rollout.longer or 0) < 42
    assert abs(rollout.total_ns - 12 * 390 * MS) < 0.02 * rollout.total_ns
    assert abs(found.covered - 2000 / (2000 + 12 * 390)) < 0.02
    assert found.sentence() == (
        "The typical step covers 30% of the loop; 70% is every 16th step, which takes 40 times as long."
    )


def test_the_rare_step_that_was_traced_counts_with_what_the_others_take_and_the_rest_was_recorded() -> None:
    rows = steps(*every(50, 400, count=150))
    rows[149] = msgspec.structs.replace(rows[149], kind="lines", wall_ns=rows[149].wall_ns + 300 * MS)
    assert [one.steps for one in measured(rows).rare] == [2]

    found = measured(rows, Lines(period_ns=MS, steps=150, rare_step=RareStep(step=149)))

    [rare] = found.rare
    assert (rare.every, rare.steps, found.steps) == (50, 3, 148)
    assert abs(rare.total_ns - 3 * 390 * MS) < 0.02 * rare.total_ns
    assert abs(found.of("recorded") - 300 * MS) < 20 * MS


@pytest.mark.parametrize(
    ("long", "period"),
    [([15, 30], 15), ([14, 29], 15), ([15, 33], None), ([15], None), ([15, 30, 40], None), ([20, 40], None)],
    ids=["after each epoch", "before", "not as late", "one", "and another", "one would be missing at the end"],
)
def test_two_much_longer_steps_are_a_rhythm_where_the_second_comes_as_late_after_the_first(
    long: list[int], period: int | None
) -> None:
    rows = steps(*(400.0 if n in long else 10.0 for n in range(44 if 20 not in long else 62)))

    assert [one.every for one in measured(rows).rare] == ([period] if period else [])


@pytest.mark.parametrize(
    ("long", "after_ms", "count", "period"),
    [(20, 380, 40, 20), (19, 380, 40, 20), (20, 100, 40, None), (20, 380, 44, None), (12, 380, 40, None)],
    ids=["at the begin of the second", "at the end of the first", "not after the last", "not half", "elsewhere"],
)
def test_one_much_longer_step_is_a_rhythm_of_two_epochs_where_the_program_goes_on_as_long_after_the_last(
    long: int, after_ms: float, count: int, period: int | None
) -> None:
    rows = steps(*(400.0 if n == long else 10.0 for n in range(count)))

    found = measured(rows, after_ms=after_ms)

    assert [one.every for one in found.rare if one.every] == ([period] if period else [])


@pytest.mark.parametrize(
    ("first_ms", "long", "count", "period"),
    [(500, 20, 40, 20), (150, 20, 40, None), (500, 19, 40, None), (500, 20, 44, None)],
    ids=["at the begin of the second", "not before the first", "at the end of the first", "not half"],
)
def test_one_much_longer_step_is_a_rhythm_of_two_epochs_where_the_first_step_was_as_long(
    first_ms: float, long: int, count: int, period: int | None
) -> None:
    rows = steps(first_ms, *(400.0 if n == long else 10.0 for n in range(1, count)))

    assert [one.every for one in measured(rows).rare if one.every] == ([period] if period else [])


@pytest.mark.parametrize(
    "first",
    [
        {"phases_ns": Phases(forward=500 * MS, backward=0, other=10 * MS)},
        {"gc_ns": 300 * MS, "compile_ns": 150 * MS},
    ],
    ids=["in another phase", "it compiled and collected garbage"],
)
def test_a_first_step_that_is_long_for_what_it_does_once_is_no_epoch(first: dict[str, Any]) -> None:
    rows = steps(500, *(400.0 if n == 20 else 10.0 for n in range(1, 40)))
    rows[0] = msgspec.structs.replace(rows[0], **first)

    assert not [one for one in measured(rows).rare if one.every]


def test_steps_that_a_disturbed_machine_made_longer_do_not_hide_what_comes_with_each_epoch() -> None:
    rows = steps(*(900.0 if n in (15, 30) else 90.0 if n in (7, 22) else 10.0 for n in range(44)))

    assert [one.every for one in measured(rows).rare] == [15]


def with_validation(rows: list[Step], number: int, kind: Any) -> list[Step]:
    row = rows[number]
    phases = msgspec.structs.replace(row.phases_ns, validation=200 * MS)
    changed = msgspec.structs.replace(row, kind=kind, wall_ns=row.wall_ns + 200 * MS, phases_ns=phases)
    return [*rows[:number], changed, *rows[number + 1 :]]


def test_a_validation_that_a_recorded_step_alone_has_counts_in_proportion() -> None:
    # Half of the steps are recorded.
    rows = [
        msgspec.structs.replace(row, kind="window" if 10 <= row.step < 30 else "timed") for row in steps(*[10] * 42)
    ]
    found = measured(with_validation(rows, 15, "lines"))

    assert abs(found.of("validation") - 200 * MS * 20 / 42) < 1 * MS
    assert found.total_ns == sum(row.wall_ns for row in with_validation(rows, 15, "lines"))
    mean = measure_mean_step(with_validation(rows, 15, "lines"))
    assert mean is not None
    assert mean.phases_ns.validation is not None
    assert abs(mean.phases_ns.validation - 200 * MS / 42) < 0.1 * MS
    assert abs(mean.wall_ns - 10 * MS - mean.phases_ns.validation) < 0.5 * MS


@pytest.mark.parametrize("kind", ["ops", "dry"])
def test_a_validation_whose_ops_were_intercepted_does_not(kind: str) -> None:
    assert measured(with_validation(steps(*[10] * 42), 15, kind)).of("validation") == 0


def test_timed_validations_stand_for_those_of_recorded_steps() -> None:
    rows = with_validation(with_validation(steps(*[10] * 42), 15, "lines"), 30, "timed")

    assert measured(rows).of("validation") == 200 * MS


def test_a_long_step_that_was_recorded_is_one_of_the_rhythm_if_others_of_its_kind_are_short() -> None:
    rows = steps(*(400.0 if n in (15, 30) else 10.0 for n in range(44)))
    for step in (15, 16):
        rows[step] = msgspec.structs.replace(rows[step], kind="lines")
    [rare] = measured(rows).rare

    assert (rare.every, rare.steps) == (15, 1)
    rows[16] = msgspec.structs.replace(rows[16], wall_ns=300 * MS)
    assert not measured(rows).rare


def test_two_steps_that_are_little_longer_are_none() -> None:
    assert not measured(steps(*(35.0 if n in (15, 30) else 10.0 for n in range(44)))).rare


def test_two_rhythms_are_two_parts() -> None:
    times = [100 if n % 8 == 7 else 300 if n % 50 == 20 else 10 for n in range(400)]

    assert {(part.every, part.steps) for part in measured(steps(*times)).rare} == {(8, 50), (50, 8)}


def test_a_rhythm_is_found_among_steps_that_are_long_at_random() -> None:
    chance = random.Random(5)
    times = [300 if n % 40 == 39 else 10 * (2 if chance.random() < 0.2 else 1) for n in range(160)]
    [sampling] = measured(steps(*times)).rare

    assert (sampling.every, sampling.steps) == (40, 4)


def test_steps_that_are_long_at_random_have_no_rhythm() -> None:
    chance = random.Random(7)
    for _ in range(30):
        times = [10 * (8 if chance.random() < 0.08 else 1) for _ in range(100)]
        found = measured(steps(*times, noise=0.2))

        assert not found.rare
        assert found.of("irregular")


def test_one_step_that_takes_most_of_the_loop_is_a_part_of_its_own_and_others_stay_irregular() -> None:
    times = [10.0] * 80
    times[50], times[60] = 2_000.0, 90.0

    found = measured(steps(*times, phase="other"))

    [rare] = found.rare
    assert (rare.steps, rare.every) == (1, None)
    assert rare.total_ns > 0.6 * found.total_ns
    assert 0 < found.of("irregular") < 100 * MS
    assert "% is one step, which takes 198 times as long" in found.sentence()
    times[50] = 500.0
    assert measured(steps(*times, phase="other")).rare == ()


def test_a_program_that_runs_longer_after_its_last_step_than_in_its_loop_ends_early() -> None:
    rows = steps(*[10.0] * 80)
    end = rows[-1].start_ns + rows[-1].wall_ns

    short, long = (measure_loop_time(rows, None, end + round(seconds * 1e9)) for seconds in (0.2, 2.5))

    assert short is not None
    assert long is not None
    assert (short.ends_early, short.sentence()) == (False, "")
    assert (long.ends_early, long.sentence()) == (True, "The program ran 2.5 s after its last step.")
    assert not measured(rows).ends_early


def test_merged_rows_have_as_many_rare_steps_as_the_rhythm_says() -> None:
    rows = steps(*every(16, 400, 1600))
    merged = [*merged_in_blocks(rows[:800], 4), *rows[800:]]

    [single], [mixed] = measured(rows).rare, measured(merged).rare
    assert (mixed.every, mixed.steps) == (16, single.steps)
    assert abs(mixed.total_ns - single.total_ns) < 0.02 * single.total_ns


def test_rows_that_were_merged_by_kind_lie_over_each_other_and_add_no_time_between_the_steps() -> None:
    rows = steps(*every(10, 30))
    rows = [
        msgspec.structs.replace(row, kind="window", window=row.step // 10) if row.step % 10 < 3 else row for row in rows
    ]
    gap = [msgspec.structs.replace(row, start_ns=row.start_ns + row.step // 50 * MS) for row in rows]

    for one in (rows, gap):
        apart, merged = measured(one), measured(merged_in_blocks(one, 40))
        assert merged.total_ns == apart.total_ns
        assert merged.of("recorded") == apart.of("recorded")
        assert merged.of("between") == apart.of("between")


def test_validation_and_checkpoints_are_their_own_parts_and_no_rare_steps() -> None:
    rows = steps(*[10] * 60)
    for at in (19, 39, 59):
        phases = msgspec.structs.replace(rows[at].phases_ns, validation=200 * MS, checkpoint=50 * MS)
        rows[at] = msgspec.structs.replace(rows[at], wall_ns=rows[at].wall_ns + 250 * MS, phases_ns=phases)
    evaluation = Step(step=60, mode="validation", start_ns=10**10, wall_ns=90 * MS, phases_ns=Phases(forward=90 * MS))
    found = measured([*rows, evaluation])

    assert not found.rare
    assert (found.of("validation"), found.of("checkpoint")) == (3 * 200 * MS + 90 * MS, 3 * 50 * MS)


def test_warm_up_recorded_steps_and_the_time_between_steps_are_told_apart() -> None:
    rows = steps(500, 300, *[10] * 30)
    window = Step(step=32, kind="window", start_ns=rows[-1].start_ns + 2 * 10**9, wall_ns=70 * MS, phases_ns=Phases())
    found = measured([*rows, window])

    assert found.of("warm-up") == rows[0].wall_ns + rows[1].wall_ns
    assert found.of("recorded") == 70 * MS
    assert found.of("between") == 2 * 10**9 - rows[-1].wall_ns
    assert found.own_ns == sum(row.wall_ns for row in rows)


def test_the_line_of_rare_steps_is_one_that_an_ordinary_step_does_not_run() -> None:
    call = Location(file="train.py", line=88, function="main")
    sampled = (
        line(90, "main", 500, "backward"),
        line(12, "rollout", 400, called_from=call),
        line(14, "rollout", 100, called_from=call),
        line(89, "main", 600, "forward"),
    )
    traced = tuple(
        TracedLine(file="train.py", line=n, function="main", owner="user", phase="forward", runs=1, host_ns=MS)
        for n in (87, 89, 90)
    )
    [rollout] = measured(steps(*every(16, 400)), Lines(period_ns=10 * MS, steps=200, rows=sampled, traced=traced)).rare

    assert (rollout.at, rollout.called) == (call, Location(file="train.py", line=12, function="rollout"))


def test_a_rollout_beside_a_function_that_trains_is_named_at_the_loop_around_both() -> None:
    call = Location(file="train.py", line=40, function="main", owner="user")
    update = Location(file="train.py", line=41, function="main", owner="user")
    rows = (
        line(12, "rollout", 200, called_from=call),
        line(30, "update", 90, "backward", called_from=update),
    )
    traced = (
        TracedLine(file="train.py", line=30, function="update", owner="user", phase="backward", runs=1, host_ns=1),
    )

    def rare(inputs: tuple[Location, ...] = ()) -> LoopPart:
        lines = Lines(period_ns=10 * MS, steps=200, rows=rows, traced=traced, training_inputs=inputs)
        [part] = measured(steps(*every(16, 200)), lines).rare
        return part

    assert (rare().at, rare().called, rare().for_training) == (call, rows[0].at, False)
    assert rare((call,)).for_training


def test_a_line_with_too_few_samples_is_not_named() -> None:
    traced = (TracedLine(file="train.py", line=9, function="m", owner="user", phase="other", runs=1, host_ns=1),)
    lines = Lines(period_ns=10 * MS, steps=200, rows=(line(12, "log", 5),), traced=traced)

    assert measured(steps(*every(16, 400)), lines).rare[0].at is None


def test_growth_is_a_part_beside_the_level_of_the_first_steps() -> None:
    rows = steps(*(10 + 0.1 * number for number in range(400)))
    found = measured(rows)

    assert abs(found.of("growth") - sum(0.1 * n * MS for n in range(400))) < 0.1 * found.of("growth")
    assert found.sentence().startswith("The level of the first steps covers 3")


def test_ordinals_are_those_of_english() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 11, 13, 22, 1000)] == ["1st", "2nd", "3rd", "11th", "13th", "22nd", "1,000th"]


def test_a_part_without_a_large_share_is_not_in_the_sentence() -> None:
    part = LoopPart(use="rare", total_ns=4, steps=1, every=8, longer=2.0)
    typical = LoopPart(use="typical", total_ns=96, steps=8)

    assert LoopTime(total_ns=100, steps=8, typical_ns=12, parts=(typical, part)).sentence() == ""


def test_a_line_that_ordinary_steps_run_too_is_rare_where_its_rare_caller_reached_it() -> None:
    usual, written = (Location(file="train.py", line=n, function=name) for n, name in ((89, "main"), (35, "sample")))
    forward = msgspec.structs.replace(
        line(22, "forward", 900, called_from=usual),
        callers=(
            LineCaller(**msgspec.structs.asdict(usual), samples=600),
            LineCaller(**msgspec.structs.asdict(written), samples=300),
        ),
    )
    call = Location(file="train.py", line=95, function="main")
    sampled = (line(90, "main", 500, "backward"), forward, line(36, "sample", 9, called_from=call))
    traced = tuple(
        TracedLine(file="train.py", line=n, function=name, owner="user", phase="forward", runs=1, host_ns=MS)
        for n, name in ((22, "forward"), (89, "main"), (90, "main"))
    )
    [rare] = measured(steps(*every(16, 400)), Lines(period_ns=10 * MS, steps=200, rows=sampled, traced=traced)).rare

    assert (rare.at, rare.called) == (call, written)


def test_the_call_of_a_function_that_trains_is_not_the_line_of_rare_steps() -> None:
    rollout, update = (Location(file="train.py", line=n, function="main", owner="user") for n in (40, 41))
    rows = (
        line(12, "rollout", 200, called_from=rollout),
        line(29, "update", 900, called_from=update),
        line(30, "update", 90, "backward", called_from=update),
    )
    traced = tuple(
        TracedLine(file="train.py", line=n, function="update", owner="user", phase="other", runs=1, host_ns=MS)
        for n in (29, 30)
    )
    lines = Lines(period_ns=10 * MS, steps=200, rows=rows, traced=traced)

    [rare] = measured(steps(*every(16, 200)), lines).rare

    assert (rare.at, rare.called) == (rollout, rows[0].at)
