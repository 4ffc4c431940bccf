"""diagonal-as-dense: the ops of the lines that factor diagonal matrices, without those of layers."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import diagonal_as_dense
from perfkit.run.records import DiagonalMatrix, Lines

MS = 1_000_000
MADE, USED, OTHER = (Location(file="train.py", line=line, function="forward", owner="user") for line in (20, 30, 40))


def found(build: Any, ms: int, *matrices: DiagonalMatrix) -> list[Any]:
    ops = [("linalg_cholesky_ex", MADE, ms), ("diag_embed", MADE, ms), ("linalg_solve_triangular", USED, 2 * ms)]
    ops += [("addmm", USED, 10), ("mul", OTHER, 10)]
    rows = tuple(
        OpWorkTime(op=f"aten::{op}", phase="forward", ns=took * MS, calls=1, ops=1, at=at) for op, at, took in ops
    )
    lines = Lines(period_ns=MS, steps=40, diagonal_matrices=matrices)
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    return list(build.findings(diagonal_as_dense, build.step(40, forward=20, backward=20), lines, work))


MATRICES = tuple(
    DiagonalMatrix(file=at.file, line=at.line or 0, function="forward", owner="user", size=size, calls=2)
    for at, size in ((MADE, 8), (USED, 12))
)


def test_the_ops_of_all_their_lines_are_the_cost_at_the_busiest(build: Any) -> None:
    [finding] = found(build, 8, *MATRICES)

    # 32 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(16 * MS)
    assert {finding.spent, finding.change or finding.spent} <= {MADE, USED}
    assert finding.message.startswith(
        "4 factorizations and solves per step get diagonal matrices only (of up to 12 rows)"
    )


def test_without_such_matrices_or_with_little_time_there_is_no_finding(build: Any) -> None:
    assert found(build, 8) == []
    assert found(build, 0, *MATRICES) == []
