"""repeated-work: a function that returns the same tensors in every step; a short one is not reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import LedgerRow
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.measurements import Measurements
from perfkit.rules.python import repeated_work
from perfkit.run.records import (
    ConstantCalls,
    ConstantOps,
    GradientCalls,
    Lines,
    ModuleCalls,
    Phase,
    RecomputedOutputs,
    StepBoundary,
    TracedLine,
)

MS = 1_000_000


def lines(host_ns: int, phase: Phase = "forward") -> Lines:
    """A forward of 40 ms whose first line calls a function of ``host_ns``."""

    def row(line: int, function: str, ns: int, **fields: Any) -> TracedLine:
        return TracedLine(
            file="model.py", line=line, function=function, owner="user", phase=phase, runs=1, host_ns=ns, **fields
        )

    called = Location(file="model.py", line=3, function="table")
    calls = ConstantCalls(called=called, calls=1, host_ns=host_ns)
    first = row(20, "forward", host_ns, constants=(calls,))
    inner = row(5, "table", host_ns, callers=(first.at,))
    return Lines(period_ns=MS, steps=40, traced=(first, inner, row(21, "forward", 40 * MS - host_ns)))


def test_it_costs_its_share_of_the_phase_and_the_call_is_to_be_edited(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)

    [finding] = build.findings(repeated_work, step, lines(20 * MS))

    assert (finding.spent.line, finding.change.line) == (5, 20)
    assert finding.cost_ns == 30 * MS


def test_a_short_one_is_no_finding(build: Any) -> None:
    assert build.findings(repeated_work, build.step(100, forward=60), lines(1 * MS)) == []


def test_a_forward_that_was_not_known_when_the_step_was_traced_is_the_forward(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)

    [finding] = build.findings(repeated_work, step, lines(20 * MS, phase="other"))

    assert finding.cost_ns == 30 * MS


def ops(line: int, function: str, ms: int, called: Location | None = None) -> ConstantOps:
    """Ops below a line that are the same in each step."""
    busiest = Location(file="model.py", line=3 if called is not None else line, function=function)
    return ConstantOps(
        file="model.py",
        line=line,
        function=function,
        owner="user",
        phase="forward",
        called=called,
        busiest=busiest,
        ops=2,
        host_ns=ms * MS,
    )


def test_ops_that_are_the_same_again_cost_their_time_at_the_line_or_the_function_that_it_calls(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)
    encoder = Location(file="model.py", line=2, function="Text.forward")
    found = Lines(period_ns=MS, steps=40, constant_ops=(ops(30, "loop", 25, encoder), ops(40, "batch", 10)))

    call, inline = build.findings(repeated_work, step, found)

    assert (call.cost_ns, call.spent.line, call.change.line) == (25 * MS, 3, 30)
    assert "Call Text.forward once" in call.advice
    assert (inline.cost_ns, inline.spent.line) == (10 * MS, 40)
    assert inline.message.startswith("Line 40 computes the same in every step, in 2 ops")


def test_a_function_that_was_seen_to_return_the_same_is_reported_once(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)
    table = Location(file="model.py", line=3, function="table")
    both = msgspec.structs.replace(lines(20 * MS), constant_ops=(ops(20, "forward", 20, table), ops(5, "table", 20)))

    assert len(build.findings(repeated_work, step, both)) == 1


def test_ops_cost_wall_time_where_other_programs_had_the_core(build: Any) -> None:
    shared = Ledger(
        wall_ns=100 * MS,
        per="step",
        basis="training thread",
        rows=(LedgerRow(owner="other programs", name="waiting for a core", ns=75 * MS),),
    )
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(100, forward=100)))
    assert step is not None
    constant = Lines(period_ns=MS, steps=40, constant_ops=(ops(20, "forward", 4),))

    [finding] = repeated_work.check(step, constant, shared)

    assert finding.cost_ns == 16 * MS
    assert list(repeated_work.check(step, constant)) == []


def frozen(again: int, caller: Location | None = None, *, ms: int = 30, **fields: Any) -> Lines:
    """A forward of 60 ms, ``ms`` of which a frozen encoder takes, and what came again of its 100 inputs."""
    place: dict[str, Any] = {"file": "model.py", "line": 20, "function": "forward", "owner": "user"}
    calls = ModuleCalls(module="Encoder", calls=1, host_ns=ms * MS)
    traced = TracedLine(**place, phase="forward", runs=1, host_ns=60 * MS, modules=(calls,))
    outputs = RecomputedOutputs(**place, module="Encoder", inputs=100, again=again, called_from=caller)
    return Lines(period_ns=MS, steps=40, traced=(traced,), recomputed_outputs=(outputs,), **fields)


def test_a_frozen_module_costs_the_share_of_its_inputs_that_came_again(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)

    [finding] = build.findings(repeated_work, step, frozen(80))

    assert (finding.spent.line, finding.cost_ns) == (20, 24 * MS)
    assert "Encoder, which nothing trains, got 80% of its inputs in an earlier step already" in finding.message
    assert build.findings(repeated_work, step, frozen(10)) == []


def test_ops_that_cost_nothing_hide_no_module_of_their_function(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)

    [finding] = build.findings(repeated_work, step, frozen(80, constant_ops=(ops(19, "forward", 0),)))

    assert "Encoder, which nothing trains" in finding.message


def test_a_program_that_does_not_train_keeps_results_in_its_loop(build: Any) -> None:
    step, calls = build.step(100, forward=60, backward=40), StepBoundary(by="module", module="Encoder")

    caller = Location(file="model.py", line=40, function="score")

    [before] = build.findings(repeated_work, step, frozen(80, caller))
    [kept] = build.findings(repeated_work, step, frozen(80, caller), build.rank(step_boundary=calls))

    assert (before.change, kept.change) == (None, caller)
    assert "before training" in before.advice
    assert "training" not in kept.advice


def test_a_reference_that_a_trainer_calls_is_an_argument_of_the_trainer(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)
    made, other = (
        Location(file="train.py", line=5, function=name, owner="user") for name in ("DPOConfig(...)", "GRPOConfig(...)")
    )
    [inside] = build.findings(repeated_work, step, frozen(80), build.rank(calls={"TrainingArguments": (made,)}))
    [own] = build.findings(repeated_work, step, frozen(80), build.rank(calls={"TrainingArguments": (other,)}))

    assert (inside.change, own.change.line if own.change else None) == (made, None)
    assert "precompute_ref_log_probs=True" in inside.advice
    assert "precompute_ref_log_probs" not in own.advice


def test_ops_that_are_the_same_in_each_step_are_said_once(build: Any) -> None:
    step = build.step(100, forward=60, backward=40)

    [finding] = build.findings(repeated_work, step, frozen(80, constant_ops=(ops(20, "forward", 20),)))

    assert "computes the same in every step" in finding.message


def style(*, is_grad: bool = False, **fields: Any) -> Lines:
    """Two of three calls of a network had their inputs in each step before; 10 ms each, and a backward of 60 ms."""
    places: list[dict[str, Any]] = [
        {"file": "train.py", "line": line, "function": "main", "owner": "user"} for line in (8, 9, 10)
    ]
    facts: dict[str, Any] = {"reached": True, **fields}
    calls = [ModuleCalls(module="VGG", calls=1, host_ns=10 * MS, number=0, **facts) for _ in places]
    traced = [
        TracedLine(**place, phase="forward", runs=1, host_ns=10 * MS, modules=(call,))
        for place, call in zip(places, calls, strict=True)
    ]
    backward = TracedLine(
        file="train.py", line=12, function="main", owner="user", phase="backward", runs=1, host_ns=60 * MS,
        gradients=GradientCalls(calls=1, host_ns=60 * MS, is_grad=is_grad),
    )  # fmt: skip
    again = tuple(RecomputedOutputs(**place, module="VGG", inputs=100, again=99) for place in places[1:])
    return Lines(period_ns=MS, steps=40, traced=(*traced, backward), recomputed_outputs=again)


def test_the_lines_that_call_a_module_with_the_same_inputs_are_one_finding_with_their_backward(build: Any) -> None:
    step = build.step(100, forward=30, backward=60)

    [finding] = build.findings(repeated_work, step, style())
    [forward] = build.findings(repeated_work, step, style(reached=False))

    assert finding.cost_ns == pytest.approx(0.99 * 60 * MS)
    assert "in lines 9 and 10: " in finding.message
    assert "the backward included" in finding.message
    assert "torch.no_grad()" in (finding.advice or "")
    assert forward.cost_ns == pytest.approx(0.99 * 20 * MS)
    assert "backward" not in forward.message


@pytest.mark.parametrize("fields", [{"draws": True}, {"passes_on": True}, {"is_grad": True}])
def test_equal_inputs_of_an_answer_that_depends_on_more_or_whose_gradients_are_asked_for_are_no_finding(
    build: Any, fields: dict[str, Any]
) -> None:
    assert build.findings(repeated_work, build.step(100, forward=30, backward=60), style(**fields)) == []


def test_lines_of_a_module_whose_ops_are_found_at_one_of_them_are_not_counted_again(build: Any) -> None:
    at = Location(file="train.py", line=9, function="main")
    constant = ConstantOps(
        file="train.py", line=9, function="main", owner="user", phase="forward", busiest=at, ops=9, host_ns=10 * MS,
        called=Location(file="vgg.py", line=3, function="VGG.forward"),
    )  # fmt: skip
    again = msgspec.structs.replace(style(), constant_ops=(constant,))

    [finding] = build.findings(repeated_work, build.step(100, forward=30, backward=60), again)

    assert "VGG.forward computes the same" in finding.message
