"""validation-too-often: from a fifth of the mean step on, at the line of the training loop that calls it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.rules.python import validation_too_often
from perfkit.run.records import LineRow, Lines, ModuleCalls, RareStep, RegrownInputs, StepInterval, TracedLine

MS = 1_000_000


def row(line: int, function: str, phase: Any, samples: int, called_from: Location | None = None) -> LineRow:
    return LineRow(
        file="train.py",
        line=line,
        function=function,
        owner="user",
        phase=phase,
        samples=samples,
        host_ns=samples * MS,
        called_from=called_from,
    )


def location(line: int, function: str) -> Location:
    return Location(file="train.py", line=line, function=function)


def test_validation_is_found_at_the_line_of_the_training_loop(build: Any) -> None:
    lines = Lines(
        period_ns=MS,
        steps=40,
        rows=(
            row(7, "Net.forward", "validation", 50, location(19, "validate")),
            row(7, "Net.forward", "forward", 20, location(35, "main")),
            row(20, "validate", "validation", 10, location(39, "main")),
            row(36, "main", "backward", 30),
        ),
    )
    every = build.mean_step(18, forward=4, backward=4, validation=10)

    [finding] = build.findings(validation_too_often, build.step(12, backward=4), every, lines)

    assert (finding.spent.file, finding.spent.line, finding.spent.function) == ("train.py", 39, "main")
    assert (finding.saving_low_ns, finding.saving_high_ns) == (7.5 * MS, 11.5 * MS)


def test_the_number_of_steps_between_two_validations_is_what_to_change(build: Any) -> None:
    interval = StepInterval(file="train.py", line=39, function="main", owner="user", set_at=location(4, "main"))
    rows = (row(20, "validate", "validation", 10, location(39, "main")), row(36, "main", "backward", 30))
    lines = Lines(period_ns=MS, steps=40, rows=rows, intervals=(interval,))
    every = build.mean_step(18, forward=4, backward=4, validation=10)

    [finding] = build.findings(validation_too_often, build.step(12, backward=4), every, lines)

    assert (finding.spent.line, finding.change.line) == (39, 4)


def test_a_text_that_a_validation_writes_without_a_cache_is_left_to_its_own_rule(build: Any) -> None:
    def found(ms: float, phase: Any = "validation", *traced: TracedLine) -> Any:
        calls = RegrownInputs(
            file="train.py", line=20, function="validate", owner="user", phase=phase, module="Net", calls=90,
            host_ns=round(ms * MS),
        )  # fmt: skip
        lines = Lines(period_ns=MS, steps=40, regrown_inputs=(calls,), traced=traced)
        every = build.mean_step(18, forward=4, backward=4, validation=10)
        return build.findings(validation_too_often, build.step(12, backward=4), every, lines)

    assert found(5.0)
    assert not found(5.1)
    # The first batch of an evaluation with gradients counts as one later; a report is none.
    assert found(5.1, "other")
    evaluates = TracedLine(
        file="train.py", line=20, function="validate", owner="user", phase="validation", runs=2, host_ns=MS
    )
    assert not found(5.1, "other", evaluates)
    assert found(5.1, "forward", evaluates)


def test_validation_once_in_a_while_is_not_reported(build: Any) -> None:
    every = build.mean_step(20, backward=8, validation=3.9)

    assert not build.findings(validation_too_often, build.step(16, backward=8), every)


def test_a_run_that_only_evaluates_does_not_validate_too_often(build: Any) -> None:
    typical, every = build.step(20, validation=18), build.mean_step(20, validation=18)

    assert not build.findings(validation_too_often, typical, every)
    assert not build.findings(validation_too_often)


def test_without_lines_the_amount_is_reported_without_a_place(build: Any) -> None:
    every = build.mean_step(20, backward=8, validation=10)

    [finding] = build.findings(validation_too_often, build.step(16, backward=8), every)

    assert (finding.cost_ns, finding.spent) == (10 * MS, None)


def test_a_validation_that_asks_a_model_the_same_again_is_mended_where_it_does(build: Any) -> None:
    def traced(line: int, function: str, ms: int, runs: int, *callers: Location, **more: Any) -> TracedLine:
        return TracedLine(
            file="train.py", line=line, function=function, owner="user", phase="validation", runs=runs,
            host_ns=ms * MS, callers=callers, **more,
        )  # fmt: skip

    calls = ModuleCalls(module="Net", calls=40, host_ns=90 * MS, same=28, same_most=7, same_ns=60 * MS)
    inside = ModuleCalls(module="Linear", calls=40, host_ns=80 * MS, same=28, same_most=7, same_ns=58 * MS)
    rare = RareStep(
        step=19,
        lines=(
            traced(95, "Bank.validation_step", 92, 8),
            traced(87, "Bank.encode", 91, 8, location(95, "Bank.validation_step"), loop_line=87),
            traced(87, "Bank.encode", 91, 32, location(87, "Bank.encode"), loop_line=87),
            traced(84, "Bank.features", 91, 40, location(87, "Bank.encode"), modules=(calls,)),
            traced(7, "Net.forward", 85, 40, location(84, "Bank.features"), modules=(inside,)),
        ),
    )
    every = build.mean_step(18, forward=4, backward=4, validation=10)

    [finding] = build.findings(
        validation_too_often, build.step(12, backward=4), every, Lines(period_ns=MS, steps=40, rare_step=rare)
    )

    assert finding.change.line == 95
    assert "Net is called 40 times in one, many of them with an input that it had before." in finding.message
    assert "Call Net once per input" in finding.advice


def test_a_metric_whose_value_nothing_reads_is_to_be_updated(build: Any) -> None:
    def found(host_ms: int, **more: Any) -> Any:
        calls = ModuleCalls(module="EnergyScore", calls=16, host_ns=host_ms * MS, **more)
        line = TracedLine(
            file="train.py", line=73, function="Net.validation_step", owner="user", phase="validation", runs=16,
            host_ns=90 * MS, modules=(calls,),
        )  # fmt: skip
        lines = Lines(period_ns=MS, steps=40, rare_step=RareStep(step=19, lines=(line,)))
        every = build.mean_step(18, forward=4, backward=4, validation=10)
        [finding] = build.findings(validation_too_often, build.step(12, backward=4), every, lines)
        return finding

    finding = found(80, drops_value=True)
    assert finding.change.line == 73
    assert "EnergyScore is called 16 times in one, and nothing reads the value that it returns." in finding.message
    assert finding.advice.startswith("Call update() of EnergyScore")
    assert "update()" not in found(80).advice
    assert "update()" not in found(40, drops_value=True).advice


@pytest.mark.parametrize(
    ("calls", "reduced"),
    [
        (("TrainingArguments", "compute_metrics"), True),
        (("TrainingArguments", "compute_metrics", "preprocess_logits_for_metrics"), False),
        (("TrainingArguments",), False),
        (("compute_metrics",), False),
    ],
)
def test_a_trainer_that_keeps_all_logits_for_its_metrics_is_to_reduce_them(
    calls: tuple[str, ...], *, reduced: bool, build: Any
) -> None:
    places = {name: (location(40 + n, "main"),) for n, name in enumerate(calls)}
    rank = build.rank(calls=places)
    trains = msgspec.structs.replace(row(60, "main", "backward", 30), within={"transformers": 30})
    lines = Lines(period_ns=MS, steps=40, rows=(trains,))
    every = build.mean_step(18, forward=4, backward=4, validation=10)

    [finding] = build.findings(validation_too_often, build.step(12, backward=4), every, lines, rank)

    assert finding.spent.line == 60
    assert ("preprocess_logits_for_metrics" in finding.advice) is reduced
    assert not reduced or finding.change.line == 41


NET = ModuleCalls(module="Net", calls=4, host_ns=10 * MS)


def in_closure(calls: int = 4, optimizer: Any = "optimizer", graph: bool = False) -> Lines:
    """A step of an optimizer that calls a closure, which evaluates the model after each backward."""

    def traced(line: int, function: str, ms: int, runs: int, caller: Location, *modules: ModuleCalls) -> TracedLine:
        return TracedLine(
            file="train.py", line=line, function=function, owner="user", phase="forward", runs=runs, host_ns=ms * MS,
            callers=(caller,), modules=modules,
        )  # fmt: skip

    return Lines(
        period_ns=MS,
        steps=40,
        rows=(row(63, "closure", "backward", 30), row(69, "main", optimizer, 9)),
        traced=(
            traced(62, "closure", 10, calls, location(69, "main"), NET),
            traced(65, "closure", 30, calls, location(69, "main")),
            traced(
                51, "error", 30, calls, location(65, "closure"),
                ModuleCalls(module="Net", calls=calls, host_ns=30 * MS, builds_graph=graph),
            ),
        ),
    )  # fmt: skip


def test_an_evaluation_in_each_call_of_a_closure_is_to_be_taken_out_of_it(build: Any) -> None:
    step = build.step(60, forward=40, backward=20)

    [finding] = build.findings(validation_too_often, step, build.mean_step(60, forward=40, backward=20), in_closure())

    assert (finding.spent.line, finding.change.line) == (51, 65)
    assert finding.cost_ns == 30 * MS
    assert finding.saving_low_ns == round(0.75 * 0.75 * 30 * MS)
    assert finding.message.startswith("error evaluates Net without gradients 4 times per step")


def test_few_calls_a_loss_and_calls_from_outside_of_a_closure_are_no_evaluation(build: Any) -> None:
    step = build.step(60, forward=40, backward=20)
    every = build.mean_step(60, forward=40, backward=20)

    for lines in (in_closure(calls=2), in_closure(optimizer="other"), in_closure(graph=True)):
        assert build.findings(validation_too_often, step, every, lines) == []
