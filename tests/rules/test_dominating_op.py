"""dominating-op: a few calls of an op with a cheaper counterpart take much of the step."""

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
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import dominating_op
from perfkit.run.records import Lines, StepInterval

MS = 1_000_000
LINE = Location(file="train.py", line=34, function="penalty")


def ledger(name: str, ms: int, *, count: float = 3, others_ms: int = 0) -> Ledger:
    rows = (
        LedgerRow(owner="computing", name=name, ns=ms * MS, phase="forward", at=LINE, count=count),
        LedgerRow(owner="computing", name="aten::mm", ns=(100 - ms - others_ms) * MS, phase="forward", at=LINE),
        LedgerRow(owner="other programs", name="", ns=others_ms * MS),
    )
    return Ledger(wall_ns=100 * MS, per="step", basis="training thread", rows=rows)


def found(build: Any, of: Ledger, work: StepWork | None = None) -> list[Finding]:
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(100, forward=100)))
    assert step is not None
    return list(dominating_op.check(step, of, work))


def convolutions(*shapes: str, backward: bool = False) -> StepWork:
    """Convolutions in the line, of which only those with ``backward`` have one."""
    row = OpWorkTime(op="aten::convolution", phase="forward", ns=30 * MS, calls=1, ops=1, at=LINE)
    rows = [msgspec.structs.replace(row, shapes=f"24x3x86x86 {weight}") for weight in shapes]
    if backward:
        rows.append(msgspec.structs.replace(row, op="aten::convolution_backward", phase="backward"))
    return StepWork(source="x", step_ns=100 * MS, rows=tuple(rows))


def test_a_decomposition_that_takes_most_of_the_step_is_found_at_its_line(build: Any) -> None:
    [finding] = found(build, ledger("aten::linalg_svdvals", 79))

    assert (finding.cost_ns, finding.spent.line, finding.severity) == (79 * MS, 34, "critical")
    assert finding.message.startswith("aten::linalg_svdvals, called 3 times per step, takes 79.0 ms")
    assert "power iteration" in finding.advice


@pytest.mark.parametrize(("name", "ms", "count"), [("aten::mm", 79, 3), ("aten::sort", 12, 3), ("aten::sort", 79, 400)])
def test_a_product_a_short_op_and_a_loop_are_no_finding(build: Any, name: str, ms: int, count: float) -> None:
    assert found(build, ledger(name, ms, count=count)) == []


def test_the_random_numbers_of_a_draw_are_its_time_and_others_are_not(build: Any) -> None:
    numbers = ledger("aten::exponential_", 40)
    draw = LedgerRow(owner="computing", name="aten::multinomial", ns=MS, phase="forward", at=LINE, count=1)

    assert found(build, numbers) == []
    [finding] = found(build, msgspec.structs.replace(numbers, rows=(*numbers.rows, draw)))
    assert finding.message.startswith("aten::multinomial, called once per step, takes 41.0 ms")
    assert "searchsorted" in finding.advice


def test_the_time_of_other_programs_does_not_hide_it(build: Any) -> None:
    assert len(found(build, ledger("aten::randperm", 14, others_ms=80))) == 1


def test_a_large_filter_of_each_channel_takes_two_passes_of_one_dimension(build: Any) -> None:
    [finding] = found(build, ledger("aten::convolution", 40), convolutions("3x1x23x23"))

    assert (finding.cost_ns, finding.spent.line) == (40 * MS, 34)
    assert "1 x 23 and 23 x 1" in finding.advice


@pytest.mark.parametrize(
    ("shapes", "backward"),
    [
        (("3x1x5x5",), False),
        (("3x1x1x23",), False),
        (("64x3x23x23",), False),
        (("3x1x23x23", "64x3x3x3"), False),
        (("96x1x7x7",), True),
    ],
    ids=["small", "one dimension", "all channels", "with another", "trained"],
)
def test_other_convolutions_are_no_filters(build: Any, shapes: tuple[str, ...], backward: bool) -> None:
    assert not found(build, ledger("aten::convolution", 40), convolutions(*shapes, backward=backward))


def test_an_op_that_runs_in_every_nth_step_is_to_be_edited_where_the_program_says_how_often(build: Any) -> None:
    every = Location(file="train.py", line=9, function="main")
    interval = StepInterval(file="train.py", line=34, function="penalty", owner="user", set_at=every)
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(100, forward=100)))
    assert step is not None
    lines = Lines(period_ns=MS, steps=40, intervals=(interval,))

    [finding] = dominating_op.check(step, ledger("aten::linalg_eigh", 79), None, lines)

    assert (finding.spent, finding.change) == (LINE, every)
    assert finding.advice.startswith("Run it less often: raise N in line 9.")


@pytest.mark.parametrize(("shapes", "is_long"), [("1x8x18399 8x1x6400", True), ("4x4x9000 8x4x512", False)])
def test_a_convolution_with_thousands_of_taps_is_a_product_of_spectra(build: Any, shapes: str, is_long: bool) -> None:
    row = OpWorkTime(op="aten::convolution", phase="forward", ns=79 * MS, calls=1, ops=1, at=LINE, shapes=shapes)
    work = StepWork(source="x", step_ns=100 * MS, rows=(row,))

    findings = found(build, ledger("aten::convolution", 79, count=1), work)

    assert ["rfft" in one.advice for one in findings] == ([True] if is_long else [])


def test_the_samples_of_a_signal_are_no_taps_in_the_backward(build: Any) -> None:
    shapes = "8x16x16000 8x16x16000 16x16x3"
    row = OpWorkTime(
        op="aten::convolution_backward", phase="backward", ns=79 * MS, calls=1, ops=1, at=LINE, shapes=shapes
    )
    work = StepWork(source="x", step_ns=100 * MS, rows=(row,))

    assert found(build, ledger("aten::convolution_backward", 79, count=1), work) == []
