"""pairwise-broadcast: ops on a tensor of all pairs and their features, which is reduced again."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import pairwise_broadcast
from perfkit.run.records import Phase, Rate
from tests.made_limits import made_limits

MS = 1_000_000
MEET, NEXT, OTHER = (
    Location(file="train.py", line=line, function=name, owner="user")
    for line, name in ((28, "nearest"), (29, "nearest"), (40, "attention"))
)
WIDE = "512x256x64"


def op(
    name: str, shapes: str, ms: int, at: Location = NEXT, phase: Phase = "forward", expanded: str = ""
) -> OpWorkTime:
    return OpWorkTime(
        op=f"aten::{name}", phase=phase, ns=ms * MS, calls=1, ops=1, shapes=shapes, expanded=expanded, at=at
    )


def cosine(*expanded: str) -> tuple[OpWorkTime, ...]:
    """What `F.cosine_similarity` does, with both tensors expanded from these shapes."""
    norms = [op("linalg_vector_norm", WIDE, 2, MEET, expanded=one) for one in expanded]
    scaled = [op("div", f"{WIDE} 512x256x1", 4, MEET, expanded=one) for one in expanded]
    return (*norms, *scaled, op("mul", f"{WIDE} {WIDE}", 6, MEET), op("sum", WIDE, 2, MEET))


PAIRS, SQUARE, SUM = op("sub", "512x1x64 1x256x64", 10, MEET), op("pow", WIDE, 8), op("sum", WIDE, 6)
ELSEWHERE = (op("mul", f"{WIDE} {WIDE}", 9, OTHER), op("mm", "512x64 64x256", 1))


def found(build: Any, *rows: OpWorkTime, limits: Any = None) -> list[Any]:
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=(*rows, *ELSEWHERE))
    given = [limits] if limits is not None else []
    return list(build.findings(pairwise_broadcast, build.step(40, forward=20, backward=20), work, *given))


def test_the_ops_on_the_pairs_are_the_cost_and_the_line_that_makes_them_is_to_be_edited(build: Any) -> None:
    [finding] = found(build, PAIRS, SQUARE, SUM, op("mul", f"{WIDE} {WIDE}", 16, NEXT, "backward"))

    assert (finding.spent, finding.change) == (NEXT, MEET)
    # 40 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(20 * MS)
    assert finding.saving_low_ns == pytest.approx(0.7 * 20 * MS)
    assert finding.message.startswith("aten::sub of 512x1x64 and 1x256x64 makes 512x256x64, which is reduced again: ")
    assert "torch.cdist(a, b)" in finding.advice


def test_what_the_products_take_in_their_place_is_not_saved(build: Any) -> None:
    # A product of 2 * 512 * 256 * 64 operations takes 1 ms.
    limits = made_limits(op_ns=0, products={"float32": (Rate(10**6, 2 * 512 * 256 * 64 * 1e3),)}, bandwidth={})
    [finding] = found(build, PAIRS, SQUARE, SUM, limits=limits)

    assert finding.saving_low_ns == pytest.approx(0.7 * (12 - 1) * MS, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "advice"),
    [
        ((op("mul", "512x1x64 1x256x64", 10, MEET), SUM), "a @ b.T"),
        ((PAIRS, op("abs", WIDE, 8), SUM), "torch.cdist(a, b, p=1)"),
        ((op("sub", "512x1x64 256x64", 10, MEET), SQUARE, SUM), "torch.cdist(a, b)"),
        (cosine("512x1x64", "1x256x64"), "F.normalize(a, dim=1) @ F.normalize(b, dim=1).T"),
    ],
)
def test_the_advice_is_what_computes_the_same(build: Any, rows: tuple[OpWorkTime, ...], advice: str) -> None:
    [finding] = found(build, *rows)

    assert advice in finding.advice


@pytest.mark.parametrize(
    "rows",
    [
        (PAIRS, SQUARE),
        (PAIRS, op("tanh", WIDE, 8), SUM),
        (op("sub", "512x256x64 1x256x64", 10, MEET), SQUARE, SUM),
        (op("sub", "512x1x1 1x256x1", 10, MEET), op("pow", "512x256x1", 8), op("sum", "512x256x1", 8)),
        (op("add", "512x1x64 1x256x64", 10, MEET), op("sum", WIDE, 8)),
        (op("sub", "512x1x64 1x256x64", 10, MEET, "backward"), SQUARE, SUM),
        cosine("512x1x64", "512x1x64"),
        cosine("", ""),
    ],
    ids=[
        *("not reduced", "a function of each pair", "one tensor", "one feature", "a sum of pairs", "in the backward"),
        *("cosines of a row with copies", "cosines of as many rows"),
    ],
)
def test_what_no_product_computes_is_no_finding(build: Any, rows: tuple[OpWorkTime, ...]) -> None:
    assert found(build, *rows) == []
