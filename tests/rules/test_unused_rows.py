"""unused-rows: the ops on all rows, by the share that nothing picks, at the line that picks."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import unused_rows
from perfkit.run.records import DroppedRows, GatedRows, Lines, ModuleCalls, Phase, TracedLine

MS = 1_000_000
ENCODES, PICKS = (
    Location(file="train.py", line=line, function=name, owner="user") for line, name in ((12, "forward"), (30, "batch"))
)


def op(name: str, shapes: str, ms: int, at: Location = ENCODES, phase: Phase = "forward") -> OpWorkTime:
    return OpWorkTime(op=f"aten::{name}", phase=phase, ns=ms * MS, calls=1, ops=1, shapes=shapes, at=at)


WORK = StepWork(
    source="stacks-0",
    step_ns=80 * MS,
    rows=(
        op("addmm", "256 6000x64 64x256", 20),
        op("gelu", "6000x256", 10),
        op("mm", "64x6000 6000x256", 30, phase="backward"),
        op("addmm", "256 512x64 64x256", 5),
        op("mul", "6000x256", 9, at=PICKS),
    ),
)


def found(build: Any, picked: int) -> list[Any]:
    line = {"file": PICKS.file, "line": PICKS.line, "function": PICKS.function, "owner": PICKS.owner}
    dropped = DroppedRows(**line, rows=6000, picked=picked, made_at=(ENCODES,))
    lines = Lines(period_ns=MS, steps=40, dropped_rows=(dropped,))
    return list(build.findings(unused_rows, build.step(40, forward=20, backward=20), lines, WORK))


def test_the_ops_on_all_rows_cost_the_share_that_is_not_picked(build: Any) -> None:
    [finding] = found(build, 600)

    assert (finding.spent, finding.change) == (ENCODES, PICKS)
    # 60 ms in a recorded step that is twice as long as an ordinary one, nine tenths of it.
    assert finding.cost_ns == pytest.approx(27 * MS)
    assert finding.saving_low_ns == pytest.approx(0.7 * 27 * MS)
    assert finding.message.startswith("6,000 rows are computed, of which 600 (10%) are picked then: the others take 27")


def test_rows_most_of_which_are_picked_are_no_finding(build: Any) -> None:
    assert found(build, 3100) == []
    assert len(found(build, 3000)) == 1


def test_a_product_of_which_the_diagonal_is_read_costs_all_but_one_row(build: Any) -> None:
    line = {"file": PICKS.file, "line": PICKS.line, "function": PICKS.function, "owner": PICKS.owner}
    dropped = DroppedRows(**line, rows=100, columns=100, is_diagonal=True, picked=1, made_at=(ENCODES,))
    lines = Lines(period_ns=MS, steps=40, dropped_rows=(dropped,))
    rows = (
        op("mm", "100x64 64x100", 20),
        op("mm", "100x100 100x64", 30, phase="backward"),
        op("mm", "100x64 64x64", 9),
        op("detach", "", 1),
    )
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)

    [finding] = build.findings(unused_rows, build.step(40, forward=20, backward=20), lines, work)

    assert finding.cost_ns == pytest.approx(0.99 * 25 * MS)
    assert finding.message.startswith("Of a product of 100 x 100 elements the diagonal alone is read: the others take")
    assert "(a * b).sum(-1)" in finding.advice


def test_of_places_of_a_picture_all_ops_on_it_are_the_cost(build: Any) -> None:
    line = {"file": PICKS.file, "line": PICKS.line, "function": PICKS.function, "owner": PICKS.owner}
    dropped = DroppedRows(**line, rows=60_000, shape=(200, 300), picked=600, made_at=(ENCODES,))
    lines = Lines(period_ns=MS, steps=40, dropped_rows=(dropped,))
    rows = (op("mul", "200x300x1x3 3x3", 20), op("sum", "200x300x3x3", 20), op("mul", "200x3 200x3", 9))
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)

    [finding] = build.findings(unused_rows, build.step(40, forward=20, backward=20), lines, work)

    assert finding.cost_ns == pytest.approx(0.99 * 20 * MS)


@pytest.mark.parametrize(("line", "found_it"), [(30, True), (31, True), (29, False)])
def test_experts_whose_rows_are_multiplied_by_zero_cost_the_share_of_those(
    build: Any, line: int, found_it: bool
) -> None:
    experts = tuple(ModuleCalls(module="Expert", calls=1, host_ns=2 * MS) for _ in range(8))
    called = TracedLine(
        file="train.py", line=30, function="batch", owner="user", phase="forward", runs=8, host_ns=16 * MS,
        modules=experts,
    )  # fmt: skip
    others = TracedLine(
        file="train.py", line=40, function="batch", owner="user", phase="forward", runs=1, host_ns=4 * MS
    )
    gated = GatedRows(file="train.py", line=line, function="batch", owner="user", rows=8 * 640, used=2 * 640, calls=8)
    lines = Lines(period_ns=MS, steps=40, gated_rows=(gated,), traced=(called, others))

    findings = build.findings(unused_rows, build.step(40, forward=20, backward=20), lines)

    assert len(findings) == found_it
    for finding in findings:
        # 16 of 20 ms of the forward, and as much of the backward; three quarters of it.
        assert finding.cost_ns == pytest.approx(24 * MS)
        assert finding.message.startswith("Expert computes 640 rows in each of 8 calls, and 75% of them are multiplied")


@pytest.mark.parametrize(("experts", "used"), [(4, 400), (1, 100)], ids=["most rows count", "one model"])
def test_experts_most_of_whose_rows_count_and_the_places_of_a_loss_are_no_finding(
    build: Any, experts: int, used: int
) -> None:
    gated = GatedRows(file="train.py", line=30, function="batch", owner="user", rows=640, used=used, calls=experts)
    called = TracedLine(
        file="train.py", line=30, function="batch", owner="user", phase="forward", runs=1, host_ns=16 * MS,
        modules=(ModuleCalls(module="Expert", calls=1, host_ns=16 * MS // experts),) * experts,
    )  # fmt: skip
    lines = Lines(period_ns=MS, steps=40, gated_rows=(gated,), traced=(called,))

    assert build.findings(unused_rows, build.step(40, forward=40), lines) == []
