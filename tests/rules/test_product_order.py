"""product-order: what the other order of three factors saves of both products, and what is between them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import product_order
from perfkit.run.records import Lines, ProductOrder

MS = 1_000_000
FIRST, SECOND, OTHER = (Location(file="train.py", line=line, function="forward", owner="user") for line in (20, 22, 40))
ROWS, INNER, OUTER = 800, 10, 40
ORDER = ProductOrder(
    file="train.py", line=20, function="forward", owner="user",
    matrices=4, rows=ROWS, columns=ROWS, inner=INNER, outer=OUTER,
    is_left=True, is_transposed=False, calls=1, read_at=(SECOND,),
)  # fmt: skip


def product(at: Location, inner: int, ms: int, **fields: Any) -> OpWorkTime:
    flops = 2 * 4 * ROWS * ROWS * inner
    given = {"op": "aten::bmm", "phase": "forward", "kind": "matmul", "flops": flops} | fields
    return OpWorkTime(ns=ms * MS, calls=1, ops=1, at=at, **given)


def found(build: Any, *orders: ProductOrder, scale: int = 1) -> list[Any]:
    rows = (
        product(FIRST, INNER, 4 * scale),
        product(FIRST, INNER, 8 * scale, phase="backward"),
        product(SECOND, OUTER, 8 * scale),
        product(FIRST, 77, 10),
        product(OTHER, INNER, 10),
        product(SECOND, 0, 6 * scale, op="aten::div", kind="copy", flops=1, shapes=f"4x{ROWS}x{ROWS}"),
        product(SECOND, 0, 5, op="aten::div", kind="copy", flops=1, shapes=f"4x{ROWS}x{OUTER}"),
    )
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    lines = Lines(period_ns=MS, steps=40, product_orders=orders)
    return list(build.findings(product_order, build.step(40, forward=20, backward=20), lines, work))


def test_the_share_of_the_multiplications_and_all_that_is_between_are_the_cost(build: Any) -> None:
    [finding] = found(build, ORDER)

    # The other order has 2 * 10 * 40 of 800 * (10 + 40) multiplications, 2%; 20 ms of products and 6 ms between them,
    # in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx((0.98 * 20 + 6) / 2 * MS)
    assert finding.saving_low_ns == pytest.approx(finding.cost_ns - 0.25 * 10 * MS)
    assert (finding.change, finding.spent) == (FIRST, SECOND)
    assert finding.message.startswith(
        "A product (4 of 800 x 800) is made once per step only to be multiplied again; the other order does without "
        "it, and takes 2% of the multiplications"
    )
    assert "a @ (b @ c) in place of (a @ b) @ c, where a is 800 x 10, b is 10 x 800, c is 800 x 40" in finding.advice


def test_calls_with_other_sizes_are_a_part_of_the_finding_of_their_line(build: Any) -> None:
    [finding] = found(build, ORDER, msgspec.structs.replace(ORDER, rows=400, calls=3))

    assert "4 times per step" in finding.message


@pytest.mark.parametrize(("inner", "outer", "count"), [(400, 400, 1), (410, 400, 0)])
def test_an_order_that_takes_more_than_half_of_the_multiplications_is_no_finding(
    build: Any, inner: int, outer: int, count: int
) -> None:
    order = msgspec.structs.replace(ORDER, inner=inner, outer=outer)
    rows = (product(FIRST, inner, 20), product(SECOND, outer, 20))
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    lines = Lines(period_ns=MS, steps=40, product_orders=(order,))

    assert len(list(build.findings(product_order, build.step(40, forward=40), lines, work))) == count


def test_without_such_products_or_with_little_time_there_is_no_finding(build: Any) -> None:
    assert found(build) == []
    assert found(build, ORDER, scale=0) == []


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("is_transposed", [True, False])
def test_what_is_advised_computes_the_same(build: Any, is_left: bool, is_transposed: bool) -> None:
    order = msgspec.structs.replace(
        ORDER, matrices=1, rows=600, columns=500, inner=INNER, outer=OUTER, is_left=is_left, is_transposed=is_transposed
    )
    rows = (product(FIRST, 0, 40, flops=2 * 600 * 500 * INNER),)
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    lines = Lines(period_ns=MS, steps=40, product_orders=(order,))

    [finding] = build.findings(product_order, build.step(40, forward=40), lines, work)

    instead, _, rest = finding.advice.removeprefix("Write ").partition(" in place of ")
    written, _, told = rest.partition(", where ")
    told = told.partition(";")[0]
    shapes = [[int(size) for size in one.partition(" is ")[2].split(" x ")] for one in told.split(", ")]
    factors = dict(zip("abc", (torch.randn(*shape, dtype=torch.float64) for shape in shapes), strict=True))
    torch.testing.assert_close(eval(instead, {}, factors), eval(written, {}, factors))
