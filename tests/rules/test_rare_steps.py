"""rare-steps: a rollout in every 16th step is reported with its line and its cost over the run; noise is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.loop import LoopPart, LoopTime
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.rules.python import rare_steps
from perfkit.run.records import (
    LineRow,
    Lines,
    ModuleCalls,
    RareStep,
    RecomputedOutputs,
    RegrownInputs,
    StepBoundary,
    StepInterval,
    TracedLine,
)

MS = 1_000_000
CALL = Location(file="train.py", line=88, function="main")
HOT = Location(file="train.py", line=12, function="rollout")

#: 160 steps of 10 ms, of which every 16th takes 200 ms more: 2 s of 3.6.
ROLLOUT = LoopPart(use="rare", total_ns=2000 * MS, steps=10, every=16, longer=21.0, phase="other", at=CALL, called=HOT)


def loop(*parts: LoopPart) -> LoopTime:
    typical = LoopPart(use="typical", total_ns=1600 * MS, steps=160)
    total = typical.total_ns + sum(part.total_ns for part in parts)
    return LoopTime(total_ns=total, steps=160, typical_ns=10 * MS, parts=(typical, *parts))


def found(build: Any, *results: Any) -> list[Any]:
    return build.findings(rare_steps, build.step(10.0), build.mean_step(22.5), *results)


def test_a_rollout_is_reported_at_its_line_and_the_one_that_calls_it_with_its_cost_per_mean_step(build: Any) -> None:
    [finding] = found(build, loop(ROLLOUT))

    assert (finding.spent, finding.change) == (HOT, CALL)
    assert (finding.severity, finding.cost_ns) == ("critical", 12_500_000)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (6_250_000, 14_375_000)
    assert finding.message == (
        "Every 16th step takes 210 ms, 21 times as long as the typical one, in rollout: "
        "12.5 ms of the mean step of 22.5 ms (56%)."
    )


def test_of_seldom_work_in_plain_python_the_hottest_line_is_edited_and_of_ops_the_one_that_calls_it(build: Any) -> None:
    seldom = msgspec.structs.replace(ROLLOUT, every=80)

    def finding(within: dict[str, int]) -> Any:
        row = LineRow(
            file="train.py",
            line=12,
            function="rollout",
            owner="user",
            phase="other",
            samples=20,
            host_ns=MS,
            within=within,
        )
        [one] = found(build, loop(seldom), Lines(period_ns=MS, steps=160, rows=(row,)))
        return one

    assert finding({"": 15, "torch": 5}).change is None  # where it is spent
    assert finding({"": 5, "torch": 15}).change == CALL
    assert finding({"": 15, "torch": 5}).advice.startswith("Do this work with sets or dicts and on whole arrays")
    assert finding({"": 5, "torch": 15}).advice.startswith("Do this work in batches, under torch.inference_mode()")


def test_a_single_step_that_takes_most_of_the_loop_is_reported(build: Any) -> None:
    [finding] = found(build, loop(msgspec.structs.replace(ROLLOUT, steps=1, every=None, longer=201.0)))

    assert finding.severity == "critical"
    assert finding.message.startswith("One of 160 steps takes 2.0 s, 201 times as long as the typical one, in rollout:")
    assert finding.change == CALL


def test_a_line_that_sorts_all_for_the_first_few_is_to_be_edited_though_training_needs_it(build: Any) -> None:
    search = msgspec.structs.replace(ROLLOUT, for_training=True)
    calls = {"argsort": (Location(file="train.py", line=12, function="argsort(...)"),)}

    [finding] = found(build, loop(search), build.rank(calls=calls))
    [elsewhere] = found(build, loop(search), build.rank(calls={"argsort": (CALL,)}))
    # The search also calls a model, and that is not most of it.
    module = ModuleCalls(module="Tower", calls=1, host_ns=2 * MS, samples=64)
    lines = looked_at(traced(88, "main", 9, modules=(module,)))
    [with_model] = found(build, loop(search), build.rank(calls=calls), lines)
    assert (with_model.severity, with_model.advice) == (finding.severity, finding.advice)

    assert (finding.severity, finding.spent, finding.change) == ("critical", HOT, None)
    assert finding.advice.startswith("Use topk")
    assert elsewhere.severity == "info"


def test_two_groups_are_two_findings_and_a_small_one_is_none(build: Any) -> None:
    sampling = msgspec.structs.replace(ROLLOUT, total_ns=800 * MS, every=50, steps=3)
    plot = msgspec.structs.replace(ROLLOUT, total_ns=100 * MS, every=80, steps=2)

    assert [finding.cost_ns for finding in found(build, loop(ROLLOUT, sampling, plot))] == [12_500_000, 5_000_000]


def test_time_that_another_rule_judges_is_left_to_it(build: Any) -> None:
    def changed(**fields: Any) -> LoopTime:
        return loop(msgspec.structs.replace(ROLLOUT, **fields))

    assert not found(build, changed(gc_ns=1500 * MS))
    assert not found(build, changed(compile_ns=1500 * MS))
    assert not found(build, changed(training_ns=1200 * MS))  # a second network, or accumulation
    assert not found(build, changed(use="irregular"))
    assert not found(build, loop(ROLLOUT), build.work("checkpoint", 9.0, line=12))
    assert found(build, loop(ROLLOUT), build.work("python", 9.0, line=12))


def test_time_in_a_trainer_itself_is_information(build: Any) -> None:
    row = LineRow(
        file="train.py", line=12, function="rollout", owner="user", phase="other", samples=99, host_ns=1,
        within={"lightning > torch": 99},
    )  # fmt: skip
    [finding] = found(build, loop(ROLLOUT), Lines(period_ns=MS, steps=9, rows=(row,)))

    assert finding.severity == "info"
    assert "lightning" in finding.advice


def test_a_slow_batch_in_a_rhythm_is_left_to_input_bound_where_there_is_a_loader(build: Any) -> None:
    fetch = loop(msgspec.structs.replace(ROLLOUT, phase="data"))

    assert not list(rare_steps.check(mean(build), fetch, loader=LoaderUse("Reviews", 2)))
    assert list(rare_steps.check(mean(build), fetch, loader=LoaderUse()))


def test_what_training_reads_is_information_at_the_line_that_computes_it(build: Any) -> None:
    [finding] = found(build, loop(msgspec.structs.replace(ROLLOUT, for_training=True)), with_interval(every=12))

    assert finding.severity == "info"
    assert "beside the training" in finding.advice
    assert (finding.spent, finding.change) == (HOT, CALL)


def with_interval(every: int) -> Lines:
    """Lines in which the number of steps between two calls is set in line 5."""
    set_at = Location(file="train.py", line=5, function="main")
    fields = {name: getattr(CALL, name) for name in ("file", "line", "function")}
    return Lines(period_ns=MS, steps=9, intervals=(StepInterval(**fields, owner="user", set_at=set_at),))


def test_a_short_interval_is_what_to_change_and_a_long_one_is_not(build: Any) -> None:
    def change(every: int) -> int:
        [finding] = found(build, loop(msgspec.structs.replace(ROLLOUT, every=every)), with_interval(every))
        return int(finding.change.line)

    assert (change(16), change(20)) == (5, CALL.line)


def test_where_less_than_fifteen_percent_of_the_mean_step_is_expected_to_be_saved_it_is_information(build: Any) -> None:
    def severity(ms: float) -> str:
        [finding] = found(build, loop(msgspec.structs.replace(ROLLOUT, total_ns=round(ms * 160 * MS))))
        return str(finding.severity)

    assert (severity(4.0), severity(4.2)) == ("info", "warning")


def test_a_text_that_is_written_without_a_cache_is_left_to_its_own_rule(build: Any) -> None:
    def lines(ms: float, phase: Any = "other") -> Lines:
        row = RegrownInputs(
            file="train.py", line=12, function="rollout", owner="user", phase=phase, module="Net", calls=90,
            host_ns=round(ms * MS),
        )  # fmt: skip
        return Lines(period_ns=MS, steps=9, regrown_inputs=(row,))

    assert not found(build, loop(ROLLOUT), lines(6.5))
    assert found(build, loop(ROLLOUT), lines(6.0))
    assert found(build, loop(ROLLOUT), lines(6.5, "validation"))


def mean(build: Any) -> Any:
    from perfkit.ledger.step_budget import MeanStepBudget

    return MeanStepBudget.from_measurements(build.measurements(build.step(10.0), build.mean_step(22.5)))


def test_the_first_call_of_each_request_is_information_where_calls_of_a_model_are_steps(build: Any) -> None:
    rank = build.rank(step_boundary=StepBoundary(by="module", module="Decoder"))

    [finding] = found(build, loop(ROLLOUT), rank)

    assert finding.severity == "info"


def traced(line: int, function: str, ns: float, *callers: int, runs: int = 1, **more: Any) -> TracedLine:
    """A line of the rare step, which the lines ``callers`` call; 88 is in main, the others are in rollout."""
    names = {88: "main", 12: "rollout", 30: "score", 40: "Policy.act"}
    return TracedLine(
        file="train.py", line=line, function=function, owner="user", phase="other", runs=runs, host_ns=round(ns * MS),
        callers=tuple(Location(file="train.py", line=by, function=names[by]) for by in callers), **more,
    )  # fmt: skip


def looked_at(*rows: TracedLine) -> Lines:
    return Lines(period_ns=MS, steps=160, rare_step=RareStep(step=47, lines=(traced(88, "main", 200), *rows)))


def test_a_rare_step_that_calls_a_model_for_each_sample_is_mended_at_its_loop_though_training_needs_it(
    build: Any,
) -> None:
    lines = looked_at(
        traced(12, "rollout", 190, 88, runs=16, loop_line=12),
        traced(12, "rollout", 180, 12, runs=256, loop_line=12),
        traced(40, "Policy.act", 170, 12, runs=256, modules=(
            ModuleCalls(module="Net", calls=256, host_ns=100 * MS, items=16, samples=1),
        )),
    )  # fmt: skip
    needed = msgspec.structs.replace(ROLLOUT, for_training=True)

    [finding] = found(build, loop(needed), lines)

    assert finding.severity == "critical"
    assert (finding.spent.line, finding.change) == (12, None)
    assert finding.advice.startswith("Call Net once with all samples")
    assert finding.message.endswith("Net is called 256 times in one, one sample at a time.")


def test_a_rare_step_that_calls_a_model_with_the_same_input_is_mended_where_that_is_repeated(build: Any) -> None:
    calls = ModuleCalls(module="Net", calls=40, host_ns=185 * MS, same=36, same_most=9, same_ns=170 * MS)
    lines = looked_at(
        traced(12, "rollout", 198, 88, runs=1),
        traced(30, "score", 190, 12, runs=10, loop_line=30),
        traced(40, "Policy.act", 190, 30, runs=40, modules=(calls,)),
    )

    [finding] = found(build, loop(ROLLOUT), lines)

    assert finding.change.line == 30
    assert "Call Net once per input" in finding.advice
    assert any(one.name == "most of one such step" and one.value == 85 for one in finding.evidence)


@pytest.mark.parametrize(("callers", "edited"), [((12, 30), 30), ((12,), None)])
def test_a_rare_step_that_asks_a_frozen_module_again_is_mended_where_the_inputs_come_again(
    build: Any, callers: tuple[int, ...], edited: int | None
) -> None:
    calls = ModuleCalls(module="Net", calls=30, host_ns=190 * MS, builds_graph=False)
    outputs = RecomputedOutputs(
        file="train.py", line=40, function="Policy.act", owner="user", module="Net", inputs=300, again=200,
        called_from=Location(file="train.py", line=30, function="score"),
    )  # fmt: skip
    lines = looked_at(
        traced(12, "rollout", 198, 88),
        traced(30, "score", 190, 12),
        traced(40, "Policy.act", 190, *callers, runs=30, modules=(calls,)),
    )
    lines = msgspec.structs.replace(lines, recomputed_outputs=(outputs,))

    [finding] = found(build, loop(ROLLOUT), lines)

    assert finding.change is not None
    assert finding.change.line == (edited or 40)
    assert "most of them with inputs that it had in an earlier step, and nothing trains it" in finding.message


def test_the_line_that_has_most_of_a_rare_step_is_the_one_to_edit(build: Any) -> None:
    lines = looked_at(
        traced(12, "rollout", 190, 88, runs=20, loop_line=11),
        traced(30, "score", 150, 12, runs=20),
        traced(31, "score", 20, 12, runs=20),
    )
    seldom = msgspec.structs.replace(ROLLOUT, every=80)

    [finding] = found(build, loop(seldom), lines)

    assert (finding.spent.line, finding.change) == (30, None)
    assert finding.message.count("in score") == 1


def test_calls_with_one_sample_each_that_may_need_each_other_stay_information(build: Any) -> None:
    calls = ModuleCalls(module="Net", calls=50, host_ns=150 * MS, samples=1, builds_graph=False)
    lines = looked_at(traced(12, "rollout", 190, 88, runs=50, loop_line=11, modules=(calls,)))

    [finding] = found(build, loop(msgspec.structs.replace(ROLLOUT, for_training=True)), lines)

    assert finding.severity == "info"
    assert finding.message.endswith("Net is called 50 times in one, with one sample each.")


def test_models_that_several_functions_below_a_line_ask_for_one_sample_each_are_named(build: Any) -> None:
    def calls(module: str, ms: int) -> tuple[ModuleCalls, ...]:
        return (ModuleCalls(module=module, calls=256, host_ns=ms * MS, samples=1),)

    lines = looked_at(
        traced(12, "rollout", 190, 88, runs=256, loop_line=11),
        traced(40, "Policy.act", 90, 12, runs=256, modules=calls("Actor", 60)),
        traced(41, "Policy.act", 90, 12, runs=256, modules=calls("Critic", 40)),
    )

    [finding] = found(build, loop(msgspec.structs.replace(ROLLOUT, for_training=True)), lines)

    assert (finding.severity, finding.spent.line) == ("info", 12)
    assert finding.message.endswith("Actor is called 256 times in one, with one sample each.")


def test_of_a_line_that_writes_draws_or_waits_the_interval_is_the_one_to_edit_where_that_is_often(build: Any) -> None:
    interval = StepInterval(
        file="train.py", line=88, function="main", owner="user", set_at=Location(file="train.py", line=4)
    )
    often = loop(msgspec.structs.replace(ROLLOUT, every=10))

    def change(within: str, waiting: int = 0) -> int | None:
        row = LineRow(
            file="train.py", line=12, function="rollout", owner="user", phase="other", samples=99, host_ns=1,
            within={within: 99}, waiting={within: waiting},
        )  # fmt: skip
        traced_lines = looked_at(traced(12, "rollout", 190, 88))
        [finding] = found(build, often, msgspec.structs.replace(traced_lines, rows=(row,), intervals=(interval,)))
        return (finding.change or finding.spent).line

    assert change("matplotlib > numpy") == 4
    assert change("torch.functional") == 12
    assert change("") == 12
    assert change("", waiting=90) == 4
