"""merged-low-rank: two thin factors are multiplied out to a layer's weight in each forward."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import merged_low_rank
from perfkit.run.records import OptimizerFacts, Phase
from tests.made_limits import made_limits

MS = 1_000_000
MERGE, USE, OTHER = (Location(file="train.py", line=line, function="forward", owner="user") for line in (28, 29, 40))


def op(name: str, shapes: str, ms: int, at: Location = MERGE, phase: Phase = "forward") -> OpWorkTime:
    return OpWorkTime(op=f"aten::{name}", phase=phase, ns=ms * MS, calls=2, ops=2, shapes=shapes, at=at)


PRODUCT, LAYER = op("mm", "512x8 8x256", 4), op("addmm", "512 64x256 256x512", 20, USE)
MADE = (
    PRODUCT,
    op("add", "512x256 512x256", 6),
    op("mul", "512x256", 5, phase="backward"),
    op("mm", "512x256 256x8", 3, phase="backward"),
)
GRADIENT = op("mm", "512x64 64x256", 10, USE, "backward")
ELSEWHERE = (op("mm", "64x512 512x256", 9, USE, "backward"), op("mm", "64x16 16x512", 7, OTHER))


def found(build: Any, *rows: OpWorkTime, trained: int = 2 * 8 * 768, more: tuple[Any, ...] = ()) -> list[Any]:
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=(*rows, *ELSEWHERE))
    optimizer = OptimizerFacts(kind="AdamW", tensors=4, elements=trained, dtypes=("float32",), foreach=None, fused=True)
    rank = msgspec.structs.replace(build.rank(), optimizers=(optimizer,))
    return list(build.findings(merged_low_rank, build.step(80, forward=40, backward=40), work, rank, *more))


def test_making_the_weight_and_its_gradient_is_the_cost_and_the_line_that_makes_it_is_to_be_edited(build: Any) -> None:
    [finding] = found(build, *MADE, LAYER, GRADIENT)

    assert finding.cost_ns == 28 * MS
    assert (finding.spent, finding.change) == (MERGE, None)  # one line is both
    assert finding.message.startswith(
        "2 whole weights are multiplied out of thin factors per step, the largest 512x8 by"
    )
    assert "whole gradients" in finding.message


def test_the_gradient_of_a_weight_that_is_trained_is_needed(build: Any) -> None:
    [finding] = found(build, *MADE, LAYER, GRADIENT, trained=1_000_000)

    assert finding.cost_ns == 18 * MS
    assert "whole gradients" not in finding.message


@pytest.mark.parametrize(
    "rows",
    [
        (*MADE, GRADIENT),  # scores of all pairs, which no layer reads
        (op("mm", "512x64 64x256", 4), *MADE[1:], LAYER),  # an inner size as that of the layers
        (op("mm", "512x128 128x256", 4), LAYER),  # factors that are not thin
        (*MADE, op("softmax", "512x256", 3, USE), LAYER),  # similarities, which are no linear map of the factors
    ],
)
def test_other_products_are_none(build: Any, rows: tuple[OpWorkTime, ...]) -> None:
    assert found(build, *rows) == []


def test_what_the_factors_take_by_themselves_is_not_saved(build: Any) -> None:
    [finding] = found(build, *MADE, LAYER, GRADIENT)
    [slow] = found(build, *MADE, LAYER, GRADIENT, more=(made_limits(flops=1e9),))

    assert (slow.saving_low_ns or 0) < (finding.saving_low_ns or 0)
