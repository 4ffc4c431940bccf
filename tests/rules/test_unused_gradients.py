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
from perfkit.run.records import UnusedGradients

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


def test_a_backward_of_next_to_nothing_is_no_finding(build: Any) -> None:
    few = LedgerRow(owner="computing", name="x", ns=MS // 10, phase="backward", at=AT)

    assert found(build, msgspec.structs.replace(ledger(("computing", "backward", 9, 9)), rows=(few,)), teacher()) == []


def test_without_the_backward_of_the_line_the_cost_is_unknown(build: Any) -> None:
    [finding] = found(build, None, teacher())

    assert (finding.cost_ns, finding.severity, finding.evidence[-1].value) == (None, "warning", None)


def test_a_run_whose_gradients_are_all_used_has_none(build: Any) -> None:
    assert found(build, ledger(*ROWS)) == []
