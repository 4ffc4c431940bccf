"""sparse-as-dense: the products with a matrix of zeros, at their line."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import sparse_as_dense
from perfkit.run.records import Lines, Phase, SparseInput

MS = 1_000_000
AT = Location(file="train.py", line=22, function="forward", owner="user")


def op(name: str, shapes: str, ms: int, phase: Phase = "forward", flops: int | None = 1000) -> OpWorkTime:
    return OpWorkTime(
        op=f"aten::{name}", phase=phase, ns=ms * MS, calls=1, ops=1, shapes=shapes, at=AT, flops=flops, bytes=0
    )


WORK = StepWork(
    source="stacks-0",
    step_ns=80 * MS,
    rows=(
        op("mm", "64x900 900x32", 20),
        op("mm", "900x64 64x32", 10, phase="backward"),
        op("addmm", "32 64x32 32x32", 7),
        op("_to_copy", "64x900", 5, flops=None),
    ),
)


def found(build: Any, nonzero: int, *, is_one_hot: bool = True) -> list[Any]:
    one = SparseInput(
        file=AT.file, line=AT.line, function="forward", owner="user",
        shape=(64, 900), elements=57_600, nonzero=nonzero, calls=1, is_one_hot=is_one_hot,
    )  # fmt: skip
    lines = Lines(period_ns=MS, steps=40, sparse_inputs=(one,))
    return list(build.findings(sparse_as_dense, build.step(40, forward=20, backward=20), lines, WORK))


def test_the_products_with_the_matrix_and_its_transpose_are_the_cost(build: Any) -> None:
    [finding] = found(build, 64)

    # 30 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(15 * MS)
    assert finding.saving_low_ns == pytest.approx(4.5 * MS)
    assert found(build, 64, is_one_hot=False)[0].saving_low_ns == pytest.approx(9 * MS)
    assert finding.message.startswith("Of a 64 x 900 matrix 64 elements are not zero, and it is multiplied as a dense")


def test_the_advice_is_a_lookup_for_one_hot_rows_and_else_a_sparse_matrix(build: Any) -> None:
    assert "F.embedding" in found(build, 64)[0].advice
    assert "to_sparse_csr" in found(build, 300, is_one_hot=False)[0].advice


def test_a_matrix_of_which_more_than_a_hundredth_is_not_zero_is_no_finding(build: Any) -> None:
    assert found(build, 577) == []
    assert len(found(build, 576)) == 1
