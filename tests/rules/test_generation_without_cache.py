"""generation-without-cache: each call of a model computes again what the calls before it computed."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.steps import GrowingInputs
from perfkit.rules.python import generation_without_cache
from perfkit.run.records import LineRow, Lines, ModuleCalls, RegrownInputs, StepBoundary, TracedLine

MS = 1_000_000
CALLED = Location(file="write.py", line=18, function="answer")


def growing(by_position: float, share: float = 1.0) -> GrowingInputs:
    return GrowingInputs(calls=300, share=share, positions=94.3, by_position=by_position)


def test_the_call_of_the_model_is_named_with_what_all_but_the_newest_position_take(build: Any) -> None:
    step = build.step(20, other=20)
    rank = msgspec.structs.replace(
        build.rank(), step_boundary=StepBoundary(by="model call", module="Play", called_at=CALLED)
    )

    [finding] = build.findings(generation_without_cache, step, growing(0.9, share=0.5), rank)

    assert (finding.spent, finding.change) == (CALLED, None)
    assert finding.cost_ns == 9 * MS
    assert (finding.saving_low_ns, finding.saving_high_ns) == (0.75 * 9 * MS, 9 * 1.15 * MS)
    assert finding.message.startswith("Each call of Play reads one position more than the last, and computes all of")


def test_a_text_that_is_written_within_the_step_is_found_at_the_line_that_calls_the_model(build: Any) -> None:
    step = build.step(20, forward=20)

    def lines(calls: int, growing: int) -> Any:
        called = ModuleCalls(module="Play", calls=calls, host_ns=16 * MS, growing=growing, growing_ns=12 * MS)
        loop = build.loop("write.py", line=18, loop_line=17, runs=calls)
        row = msgspec.structs.replace(loop.traced[0], host_ns=20 * MS, modules=(called,))
        return msgspec.structs.replace(loop, traced=(row,))

    inner = msgspec.structs.replace(lines(40, 39).traced[0], line=9, callers=(lines(40, 39).traced[0].at,))
    both = msgspec.structs.replace(lines(40, 39), traced=(*lines(40, 39).traced, inner))
    [finding] = build.findings(generation_without_cache, step, both)

    assert (finding.spent.line, finding.cost_ns) == (18, 12 * MS)
    assert not build.findings(generation_without_cache, step, lines(40, 12))
    assert not build.findings(generation_without_cache, step, lines(6, 5))


def test_a_text_that_is_written_in_a_report_or_a_validation_is_found_by_all_calls_of_the_run(build: Any) -> None:
    row = RegrownInputs(
        file="write.py", line=18, function="answer", owner="user", phase="validation", module="Play", calls=800,
        host_ns=12 * MS,
    )  # fmt: skip
    every, lines = build.mean_step(40, validation=20), Lines(period_ns=MS, steps=9, regrown_inputs=(row,))

    [finding] = build.findings(generation_without_cache, build.step(20), every, lines)

    assert (finding.spent.line, finding.cost_ns) == (18, 12 * MS)
    assert "12.0 ms of the mean step of 40.0 ms" in finding.message
    few = msgspec.structs.replace(row, host_ns=MS)
    assert not build.findings(
        generation_without_cache, build.step(20), every, msgspec.structs.replace(lines, regrown_inputs=(few,))
    )


def test_a_line_that_generates_in_an_evaluation_and_outside_is_said_once(build: Any) -> None:
    row = RegrownInputs(
        file="train.py",
        line=18,
        function="tell",
        owner="user",
        phase="validation",
        module="Writer",
        calls=200,
        host_ns=12 * MS,
    )
    outside = msgspec.structs.replace(row, phase="other", calls=40, host_ns=3 * MS)
    lines = Lines(period_ns=MS, steps=9, regrown_inputs=(row, outside))

    [finding] = build.findings(generation_without_cache, build.step(20), build.mean_step(40, validation=20), lines)

    assert finding.cost_ns == 15 * MS
    assert [(item.name, item.value) for item in finding.evidence] == [("calls", 240), ("phase", "validation other")]


def test_a_traced_step_that_held_the_evaluation_does_not_hide_what_all_calls_of_the_run_show(build: Any) -> None:
    called = ModuleCalls(module="Writer", calls=56, host_ns=16 * MS, growing=52, growing_ns=12 * MS)
    at = TracedLine(
        file="train.py", line=18, function="tell", owner="user", phase="validation", runs=2, host_ns=18 * MS,
        modules=(called,),
    )  # fmt: skip
    of_run = RegrownInputs(
        file="train.py", line=18, function="tell", owner="user", phase="other", module="Writer", calls=108,
        host_ns=14 * MS,
    )  # fmt: skip
    lines = Lines(period_ns=MS, steps=9, traced=(at,), regrown_inputs=(of_run,))

    [finding] = build.findings(generation_without_cache, build.step(20), build.mean_step(40, validation=20), lines)

    assert (finding.spent.line, finding.cost_ns) == (18, 14 * MS)


def test_where_the_length_costs_little_nothing_is_reported(build: Any) -> None:
    step = build.step(20, other=20)

    assert not build.findings(generation_without_cache, step, growing(0.04))
    assert not build.findings(generation_without_cache, step, growing(0.9, share=0.05))
    assert not build.findings(generation_without_cache, step)


def test_a_library_that_generates_is_told_where_the_program_turns_the_cache_off(build: Any) -> None:
    called = ModuleCalls(module="Play", calls=40, host_ns=16 * MS, growing=39, growing_ns=12 * MS)
    loop = build.loop("write.py", line=18, loop_line=17, runs=40)
    row = msgspec.structs.replace(loop.traced[0], host_ns=20 * MS, modules=(called,))
    off = Location(file="write.py", line=3, function="use_cache=")
    rank = msgspec.structs.replace(build.rank(), calls={"use_cache=False": (off,)})

    def change(within: str) -> Location | None:
        sampled = LineRow(
            file=row.file, line=row.line, function="f", owner="user", phase="forward", samples=9, host_ns=9,
            within={within: 9},
        )  # fmt: skip
        lines = msgspec.structs.replace(loop, traced=(row,), rows=(sampled,))
        [finding] = build.findings(generation_without_cache, build.step(20, forward=20), lines, rank)
        return finding.change

    assert change("transformers > torch") == off
    assert change("") is None
