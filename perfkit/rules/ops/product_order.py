"""Three matrices are multiplied in an order whose result in between is large.

Problem: `(a @ b) @ c` and `a @ (b @ c)` are the same, but not the same work. Where `a @ b` has many more elements than
its factors, the other order needs a fraction of the work and of the memory, in the forward and in the backward.

How it shows: the result of a product, of 10,000 elements or more, is read by one other product alone, with nothing but
views, copies and multiplications by a number in between, and is not kept. The other order takes at most half of the
multiplications. What that saves of both products, and of the copies and multiplications, is 5% of the step or more.

Causes: a non-local block, or attention, without softmax; a weight of low rank that is multiplied out before the product
with the input; a Gram matrix that is multiplied by vectors.

Fix: parentheses. A scale stays as it is, and is applied to the end result.

    y = theta @ (phi.transpose(-1, -2) @ g) / places      # not: (theta @ phi.transpose(-1, -2) / places) @ g
    y = (x @ v) @ u                                       # not: x @ (v @ u)
    y = a.T @ (a @ vectors)                               # not: (a.T @ a) @ vectors

Saving: of the time of both products the share of the multiplications that the other order does without, or a quarter
of that time less; copies and multiplications of the result in between wholly.

Source: the ops of one step. Of 19 sizes on a CPU, one thread, with and without backward, the other order took the share
of the time that it has of the multiplications, or at most 0.23 more (CALIBRATION.md). On a CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfkit._format import percent, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines, ProductOrder

ID = "product-order"
CLAIMS = COMPUTING
#: What is the same in every step needs no other order, and a weight of low rank has a rule of its own.
FOLLOWS_AT_LINE = ("repeated-work", "merged-low-rank")

#: The share of the multiplications that the other order takes at most (chosen: small products take longer than their
#: work, and 0.5 of the work took up to 0.68 of the time).
_SHARE = 0.5
#: What the other order takes more than its share of the multiplications, of the time of both products: at most 0.23 was
#: measured, with matrices of 128 x 16 (CALIBRATION.md).
_MORE = 0.25
_IN_BETWEEN = frozenset(f"aten::{name}" for name in ("mul", "mul_", "div", "div_", "neg", "neg_", "copy_", "clone"))
#: How an order is written now, and what takes its place, by whether the result is the left factor and is transposed.
_REWRITTEN = {
    (True, False): ("(a @ b) @ c", "a @ (b @ c)"),
    (True, True): ("(a @ b).mT @ c", "b.mT @ (a.mT @ c)"),
    (False, False): ("c @ (a @ b)", "(c @ a) @ b"),
    (False, True): ("c @ (a @ b).mT", "(c @ b.mT) @ a.mT"),
}


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find products in the slower order by the line of the first, and what the other order saves."""
    of_line: dict[Location, list[ProductOrder]] = defaultdict(list)
    for one in lines.product_orders:
        if _share(one) <= _SHARE:
            of_line[one.at].append(one)
    for at, orders in of_line.items():
        spent: list[OpWorkTime] = []
        products_ns = others_ns = saved_ns = 0.0
        for one in orders:
            products, others = _rows_of(one, [row for row in work.rows if row not in spent])
            spent += products + others
            own_ns = sum(row.ns for row in products)
            products_ns, others_ns = products_ns + own_ns, others_ns + sum(row.ns for row in others)
            saved_ns += (1 - _share(one)) * own_ns
        of_step = step.wall_ns / max(1, work.step_ns)
        cost = (saved_ns + others_ns) * of_step
        if step.is_negligible(cost):
            continue
        largest = max(orders, key=lambda one: one.calls * _own(one))
        written, instead = _REWRITTEN[largest.is_left, largest.is_transposed]
        calls = sum(one.calls for one in orders)
        yield step.finding(
            cost=cost,
            saving=(max(0.0, cost - _MORE * products_ns * of_step), step.maximum_saving(cost)),
            spent=busiest_place(spent) or at,
            change=at,
            message=(
                f"A product ({_size(largest)}) is made {times(calls)} per step only to be multiplied again; the other "
                f"order does without it, and takes {percent(_share(largest), 1)} of the multiplications: "
                f"{step.shown(cost)}."
            ),
            advice=(
                f"Write {instead} in place of {written}{_factors(largest)}; a scale goes to the end result. Where some "
                "steps read the product itself, compute it in these."
            ),
            confidence="medium",
            evidence=(
                Evidence("multiplications", largest.calls * _own(largest), "per step", "shapes of a step's products"),
                Evidence("in the other order", largest.calls * _other(largest), "per step", "the same"),
                Evidence.ms("both products", products_ns, f"{work.source}, per step"),
                Evidence.ms("copies and scales in between", others_ns, f"{work.source}, per step"),
            ),
        )


def _own(one: ProductOrder) -> int:
    return one.matrices * one.rows * one.columns * (one.inner + one.outer)


def _other(one: ProductOrder) -> int:
    return one.matrices * one.inner * one.outer * (one.rows + one.columns)


def _share(one: ProductOrder) -> float:
    """The other order's multiplications as a share of those that are done."""
    return _other(one) / max(1, _own(one))


def _rows_of(one: ProductOrder, rows: Sequence[OpWorkTime]) -> tuple[list[OpWorkTime], list[OpWorkTime]]:
    """The ops of both products, forward and backward, and those on the result in between."""
    places = {(at.file, at.line) for at in (one.at, *one.read_at)}
    elements = one.matrices * one.rows * one.columns
    # A product has two more of the same size in its backward.
    flops = {2 * elements * one.inner, 2 * elements * one.outer}
    here = [row for row in rows if row.at is not None and (row.at.file, row.at.line) in places]
    products = [row for row in here if row.kind == "matmul" and row.flops in flops]
    others = [row for row in here if row.op in _IN_BETWEEN and elements in _elements_of(row)]
    # The end result may have as many elements, and is scaled in the other order too.
    return products, others if one.outer not in (one.rows, one.columns) else []


def _elements_of(row: OpWorkTime) -> Iterator[int]:
    for shape in row.shapes.split():
        count = 1
        for length in shape.split("x"):
            count *= int(length) if length.isdigit() else 0
        yield count


def _size(one: ProductOrder) -> str:
    size = f"{one.rows:,} x {one.columns:,}"
    return size if one.matrices == 1 else f"{one.matrices:,} of {size}"


def _factors(one: ProductOrder) -> str:
    """The sizes of the factors, of which one order multiplies some transposed."""
    summed = one.rows if one.is_transposed == one.is_left else one.columns
    third = (summed, one.outer) if one.is_left else (one.outer, summed)
    sizes = (one.rows, one.inner), (one.inner, one.columns), third
    return ", where " + ", ".join(
        f"{name} is {height:,} x {width:,}" for name, (height, width) in zip("abc", sizes, strict=True)
    )
