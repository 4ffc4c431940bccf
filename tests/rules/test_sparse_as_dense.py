"""sparse-as-dense: the products with a matrix of zeros, at their line."""

from __future__ import annotations

from typing import Any

import msgspec
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


def at(function: str, line: int = 20, file: str = "train.py") -> Location:
    return Location(file=file, line=line, function=function, owner="user")


def of_attention(build: Any, *rows: OpWorkTime, function: str = "Layer.forward", nonzero: int = 9_000) -> list[Any]:
    one = SparseInput(
        file=AT.file, line=AT.line, function=function, owner="user",
        shape=(900, 900), elements=1_620_000, nonzero=nonzero, calls=1, is_one_hot=False, is_attention=True,
    )  # fmt: skip
    lines = Lines(period_ns=MS, steps=40, sparse_inputs=(one,))
    product = op("bmm", "2x900x900 2x900x8", 10)
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=(product, *rows))
    return list(build.findings(sparse_as_dense, build.step(80, forward=40, backward=40), lines, work))


def moved(row: OpWorkTime, to: Location) -> OpWorkTime:
    return msgspec.structs.replace(row, at=to)


def test_of_attention_all_ops_of_its_class_on_all_pairs_are_the_cost(build: Any) -> None:
    scores, forward = at("Layer.scores", 14), at("Layer.forward", 20)

    [finding] = of_attention(
        build,
        moved(op("add", "2x900x1 2x1x900", 2), scores),
        moved(op("where", "900x900 2x900x900 2x900x900", 3), forward),
        moved(op("_softmax", "2x900x900", 5), forward),
        moved(op("_softmax_backward_data", "2x900x900 2x900x900", 6, phase="backward"), forward),
    )

    assert finding.cost_ns == pytest.approx(26 * MS)
    assert finding.saving_low_ns == pytest.approx(0.55 * 26 * MS)
    assert finding.severity == "critical"
    assert finding.message.startswith("Attention is computed for all 900 x 900 pairs, of which its mask leaves 4,500: ")
    assert "scatter_reduce" in finding.advice
    assert "index_add_" in finding.advice


@pytest.mark.parametrize(
    "row",
    [
        moved(op("sigmoid", "900x900", 5), at("Decoder.forward")),
        moved(op("sigmoid", "900x900", 5), at("Layer.forward", file="loss.py")),
        moved(op("bmm", "2x900x900 2x900x8", 5), at("Layer.forward", 40)),
        moved(op("mm", "900x64 64x900", 5), at("Layer.forward", 40)),
        moved(op("add", "900x500 900x1", 5), at("Layer.forward")),
        moved(op("cat", "900x500 400x900", 5), at("Layer.forward")),
        msgspec.structs.replace(op("softmax", "900x900", 5), at=None),
    ],
    ids=[
        "another class",
        "another file",
        "another product",
        "queries and keys",
        "features",
        "shapes that do not fit",
        "an unknown line",
    ],
)
def test_ops_of_others_and_on_other_shapes_are_no_cost_of_attention(build: Any, row: OpWorkTime) -> None:
    [finding] = of_attention(build, row)

    assert finding.cost_ns == pytest.approx(10 * MS)


def test_functions_of_one_script_are_no_class(build: Any) -> None:
    other = moved(op("sigmoid", "900x900", 5), at("main.<locals>.loss"))
    own = moved(op("exp", "900x900", 3), at("main.<locals>.attend"))

    [finding] = of_attention(build, other, own, function="main.<locals>.attend")

    assert finding.cost_ns == pytest.approx(13 * MS)


def test_a_mask_that_leaves_half_of_the_pairs_is_no_finding(build: Any) -> None:
    assert of_attention(build, nonzero=810_000) == []


def test_of_attention_the_product_with_joined_rows_and_that_of_its_gradient_count(build: Any) -> None:
    joined = op("mm", "1800x900 900x8", 4)
    gradient = op("bmm", "2x900x8 2x8x900", 3, phase="backward")
    other = op("mm", "900x64 64x64", 2)

    [finding] = of_attention(build, joined, gradient, other)

    assert finding.cost_ns == pytest.approx(17 * MS)
