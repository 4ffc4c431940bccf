"""Gradients that nothing uses cost the backward of the line that calls their model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import LedgerRow
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.measurements import Measurements
from perfkit.rules.ops import unused_gradients
from perfkit.run.records import (
    MODELS,
    GradientCalls,
    LineRow,
    Lines,
    ModuleCalls,
    OptimizerFacts,
    TracedLine,
    UnusedGradients,
)

MS = 1_000_000
AT = Location(file="train.py", line=8, function="distill", owner="user")


def ledger(*rows: tuple[str, str, int, int]) -> Ledger:
    """Of a step of 10 ms, with rows of (owner, phase, line, ms)."""
    made: list[Any] = [
        LedgerRow(owner=owner, name="x", ns=ms * MS, phase=phase, at=msgspec.structs.replace(AT, line=line))  # type: ignore[arg-type]
        for owner, phase, line, ms in rows
    ]
    return Ledger(wall_ns=10 * MS, per="step", basis="training thread", rows=tuple(made))


def found(build: Any, of: Ledger | None, *unused: UnusedGradients) -> list[Finding]:
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(10, forward=10)))
    assert step is not None
    return list(unused_gradients.check(step, msgspec.structs.replace(build.rank(), unused_gradients=unused), of))


def teacher(*, passes_on: bool = False) -> UnusedGradients:
    return UnusedGradients(module="Teacher", elements=1000, called_at=AT, passes_on=passes_on)


ROWS = (
    ("computing", "backward", 8, 3),
    ("op overhead", "backward", 8, 1),
    ("computing", "forward", 8, 2),
    ("computing", "backward", 9, 2),
)


@pytest.mark.parametrize(
    ("passes_on", "cost", "advice"), [(False, 4, "torch.no_grad()"), (True, 2, "inputs still get")]
)
def test_the_backward_of_the_models_line_is_the_cost_or_half_of_it(
    build: Any, passes_on: bool, cost: int, advice: str
) -> None:
    [finding] = found(build, ledger(*ROWS), teacher(passes_on=passes_on))

    assert finding.cost_ns == cost * MS
    assert 0 < (finding.saving_low_ns or 0) < cost * MS
    assert finding.spent == AT
    assert advice in (finding.advice or "")


@pytest.mark.parametrize(("passes_on", "cost"), [(False, 3), (True, 1.5)])
def test_a_model_of_the_programs_own_lines_costs_the_backward_by_its_share_of_the_forward(
    build: Any, passes_on: bool, cost: float
) -> None:
    # The main script's line runs the step, in it 6 ms are the teacher's forward, 2 ms the student's, 4 ms the backward.
    main, teach, learn, backward = (
        TracedLine(
            file="train.py",
            line=line,
            function=name,
            owner="user",
            phase="other",
            runs=1,
            host_ns=ms * MS,
            callers=callers,
            modules=tuple(ModuleCalls(module=module, calls=1, host_ns=ms * MS) for module in modules),
        )
        for line, name, ms, callers, modules in (
            (20, "main", 12, (), ()),
            (8, "distill", 6, (Location(file="train.py", line=20, function="main"),), ("Teacher",)),
            (9, "distill", 2, (Location(file="train.py", line=20, function="main"),), ("Student",)),
            (10, "distill", 4, (Location(file="train.py", line=20, function="main"),), ()),
        )
    )
    sampled = LineRow(
        file="train.py", line=10, function="distill", owner="user", phase="backward", samples=9, host_ns=4 * MS
    )
    lines = Lines(period_ns=MS, steps=40, rows=(sampled,), traced=(main, teach, learn, backward))
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(8, forward=4, backward=4)))
    assert step is not None
    rank = msgspec.structs.replace(build.rank(), unused_gradients=(teacher(passes_on=passes_on),))

    # Where the line calls the model's own lines, only what else it calls is at the line itself.
    beside = ledger(("computing", "backward", 44, 3), ("computing", "backward", 8, 1))
    inner = TracedLine(
        file="train.py", line=44, function="Teacher.forward", owner="user", phase="other", runs=1, host_ns=5 * MS,
        callers=(Location(file="train.py", line=8, function="distill"),),
    )  # fmt: skip
    [finding] = unused_gradients.check(step, rank, ledger(("computing", "backward", 44, 4)), lines)
    [own] = unused_gradients.check(step, rank, beside, msgspec.structs.replace(lines, traced=(*lines.traced, inner)))

    assert own.cost_ns == finding.cost_ns
    assert finding.cost_ns == cost * MS
    assert "traced by line" in finding.evidence[-1].source


def test_parts_of_a_model_that_a_library_calls_cost_their_share_of_its_backward(build: Any) -> None:
    row = TracedLine(
        file="train.py", line=8, function="forward", owner="user", phase="forward", runs=1, host_ns=8 * MS,
        modules=(ModuleCalls(module="Model", calls=1, host_ns=8 * MS),),
    )  # fmt: skip
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(30, forward=10, backward=20)))
    assert step is not None
    parts = msgspec.structs.replace(teacher(passes_on=True), module="Block", of="Model", parts=3, share=0.75)
    rank = msgspec.structs.replace(build.rank(), unused_gradients=(parts,))

    [finding] = unused_gradients.check(step, rank, None, Lines(period_ns=MS, steps=40, traced=(row,)))

    assert finding.cost_ns == pytest.approx(20 * MS * 0.75 / 2)


@pytest.mark.parametrize(("lines", "spent"), [((4, 12, 30), 12), ((4, 6), 4), ((), 8)])
def test_the_time_passes_in_the_backward_below_the_call_of_the_model(
    build: Any, lines: tuple[int, ...], spent: int
) -> None:
    traced = tuple(
        TracedLine(
            file="train.py", line=number, function="distill", owner="user", phase="other", runs=1, host_ns=MS,
            gradients=GradientCalls(calls=1, host_ns=(9 - at) * MS),
        )
        for at, number in enumerate(lines)
    )  # fmt: skip
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(10, forward=4, backward=6)))
    assert step is not None
    rank = msgspec.structs.replace(build.rank(), unused_gradients=(teacher(),))

    [finding] = unused_gradients.check(step, rank, ledger(*ROWS), Lines(period_ns=MS, steps=40, traced=traced))

    assert finding.spent is not None
    assert finding.spent.line == spent
    assert (finding.change or finding.spent).line == 8


def test_a_backward_of_next_to_nothing_is_no_finding(build: Any) -> None:
    few = LedgerRow(owner="computing", name="x", ns=MS // 10, phase="backward", at=AT)

    assert found(build, msgspec.structs.replace(ledger(("computing", "backward", 9, 9)), rows=(few,)), teacher()) == []


def test_without_the_backward_of_the_line_the_cost_is_unknown(build: Any) -> None:
    [finding] = found(build, None, teacher())

    assert (finding.cost_ns, finding.severity, finding.evidence[-1].value) == (None, "warning", None)


def test_a_run_whose_gradients_are_all_used_has_none(build: Any) -> None:
    assert found(build, ledger(*ROWS)) == []


def test_parts_that_are_not_trained_cost_their_share_and_are_changed_where_the_optimizer_is_made(build: Any) -> None:
    made = Location(file="train.py", line=3, function="main")
    optimizer = OptimizerFacts(kind="SGD", tensors=2, elements=20, dtypes=("float32",), created_at=made)
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(10, forward=10)))
    assert step is not None
    parts = msgspec.structs.replace(teacher(), module="Block", of="Model", parts=3, share=0.75)
    rank = msgspec.structs.replace(build.rank(), unused_gradients=(parts,), optimizers=(optimizer,))

    [finding] = unused_gradients.check(step, rank, ledger(*ROWS))

    assert (finding.cost_ns, finding.change) == (3 * MS, made)
    assert finding.message.startswith("The backward computes gradients of Block and 2 other parts of Model, whose ")


def test_a_frozen_model_is_edited_where_it_is_made_and_one_that_is_only_asked_where_it_is_called(build: Any) -> None:
    made = Location(file="train.py", line=3, function="Teacher(...)")
    calls = {MODELS: (Location(file="train.py", line=2, function="Student(...)"), made)}
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(10, forward=10)))
    assert step is not None

    def change(one: UnusedGradients) -> Location | None:
        rank = msgspec.structs.replace(build.rank(), unused_gradients=(one,), calls=calls)
        [finding] = unused_gradients.check(step, rank, ledger(*ROWS))
        return finding.change

    assert change(teacher(passes_on=True)) == made
    assert change(teacher()) is None  # the call, which is where the time passes in this recording


@pytest.mark.parametrize(("backwards", "line"), [((12,), 8), ((12, 20), 10)])
def test_what_two_backwards_need_is_detached_where_the_first_of_them_does(
    build: Any, backwards: tuple[int, ...], line: int
) -> None:
    critic = TracedLine(
        file="train.py", line=10, function="distill", owner="user", phase="forward", runs=1, host_ns=MS,
        modules=(ModuleCalls(module="Critic", calls=1, host_ns=MS),),
    )  # fmt: skip
    traced = tuple(
        TracedLine(
            file="train.py", line=at, function="distill", owner="user", phase="backward", runs=1, host_ns=MS,
            gradients=GradientCalls(calls=1, host_ns=MS),
        )
        for at in backwards
    )  # fmt: skip
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(10, forward=10)))
    assert step is not None
    generator = msgspec.structs.replace(teacher(), cleared=True)
    rank = msgspec.structs.replace(build.rank(), unused_gradients=(generator,))

    [finding] = unused_gradients.check(
        step, rank, ledger(*ROWS), Lines(period_ns=MS, steps=40, traced=(critic, *traced))
    )

    assert finding.change is not None
    assert finding.change.line == line


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({}, 10 / 2 + 10),
        ({"passes_on": True}, 10 / 2 + 10 / 2),
        ({"reached": False}, 10 / 2),
        ({"reached": None}, 10 / 2),
        ({"number": 1}, 10 / 2),
    ],
    ids=["inputs without gradients", "inputs with gradients", "detached", "not known", "another model of the class"],
)
def test_another_line_that_calls_the_model_costs_the_backward_by_its_own_inputs(
    build: Any, fields: dict[str, Any], cost: float
) -> None:
    facts: list[dict[str, Any]] = [{"passes_on": True}, fields]
    traced = tuple(
        TracedLine(
            file="train.py", line=line, function="distill", owner="user", phase="forward", runs=1, host_ns=5 * MS,
            modules=(ModuleCalls(module="Teacher", calls=1, host_ns=5 * MS, **{"number": 0, "reached": True, **own}),),
        )
        for line, own in zip((8, 9), facts, strict=True)
    )  # fmt: skip
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(30, forward=10, backward=20)))
    assert step is not None
    rank = msgspec.structs.replace(build.rank(), unused_gradients=(teacher(passes_on=True),))

    [finding] = unused_gradients.check(step, rank, None, Lines(period_ns=MS, steps=40, traced=traced))

    assert finding.cost_ns == pytest.approx(cost * MS)
