"""A product of two thin matrices is computed as a whole weight in each forward, as by an adapter that merges itself.

Problem: an update of low rank (LoRA) is `B @ A`, of size `out x in`, although both factors are thin. Where a forward
adds it to the weight, it makes, scales and adds tensors of the whole weight's size, and the backward computes the
gradient of a whole weight, as if all of it were trained, only to multiply it with the factors again.

How it shows: a product whose inner size is at most an eighth of both others, and whose result, or what is made of it,
is then the weight of a layer. All that takes 5% of the step or more.

Causes: `F.linear(x, weight + scale * (B @ A))` in the forward of an adapter; a layer in two factors that is multiplied
out before it is used.

Fix: apply the factors one after the other, and merge them once, for inference.

    return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)

Saving: the ops that make the weight, forward and backward, and where the whole weights are not trained their gradients
too; without twice what the products with the factors take at the machine's limit (chosen, for their thin shapes). At
least 70% of that (chosen).

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), section 4.1, applies the factors to the
input. The shapes of one step. Of a program that was called healthy the finding states 39%; correcting it saved 29%.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import MachineLimits, Rank

ID = "merged-low-rank"
CLAIMS = COMPUTING
#: A weight that is the same in every step needs no other layer, but to be kept.
FOLLOWS_AT_LINE = ("repeated-work",)

#: Both sizes are this many times the inner one (chosen): LoRA's factors have 4 to 64 of hundreds or thousands.
_LOW = 8
#: The share of the saving that is left at least, and what thin products take of their limit (both chosen).
_MINIMUM, _THIN = 0.7, 2
#: What a forward may do with the product: after anything else (a softmax of similarities) factors cannot replace it.
_LINEAR = re.compile(r"^aten::(mm|add|sub|mul|div|neg|t|clone|copy_|_to_copy|to|contiguous)_?$")
_PRODUCTS = ("aten::mm", "aten::addmm")
#: Products of a layer's forward and backward: of its input, of the gradient of that, and of the factor's gradient.
_OF_A_FACTOR = 3

_Shape = tuple[int, int]


class _Merged(NamedTuple):
    """A weight that a line makes of two factors: its sizes, the inner one, how often per step, and in what numbers."""

    sizes: _Shape
    inner: int
    calls: float
    precision: str


def check(
    step: StepBudget, work: StepWork, rank: Rank | None = None, limits: MachineLimits | None = None
) -> Iterator[Finding]:
    """Find lines that make whole weights of two thin factors, and what the ops on them take."""
    lines: dict[Location, list[_Merged]] = defaultdict(list)
    for row in work.rows:
        merged = _merged(row) if row.at is not None else None
        if row.at is None or merged is None or not _inputs(merged, work.rows):
            continue
        if all(map(_LINEAR.match, _forward_ops(row.at, merged, work.rows))):
            lines[row.at].append(merged)
    for at, weights in lines.items():
        made = [row for row in work.rows if row.at == at and any(_makes(row, one) for one in weights)]
        graded = [row for row in work.rows if any(_grades(row, one) for one in weights)]
        graded = graded if _are_frozen(weights, rank) else []
        spent_ns = sum(row.ns for row in (*made, *graded))
        cost = spent_ns * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        after_ns = sum(_after_ns(one, work.rows, limits) for one in weights)
        saving = max(0.0, cost - after_ns * cost / max(1, spent_ns))
        largest = max(weights, key=lambda one: one.sizes[0] * one.sizes[1])
        (rows, columns), inner = largest.sizes, largest.inner
        count = round(sum(one.calls for one in weights))
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * saving, step.maximum_saving(saving)),
            spent=busiest_place([*made, *graded]),
            change=at,
            message=(
                f"{count} whole weight{'s are' if count > 1 else ' is'} multiplied out of thin factors per step, the "
                f"largest {rows}x{inner} by {inner}x{columns}{', and get whole gradients' if graded else ''}: "
                f"{step.shown(cost)}."
            ),
            advice=(
                f"Apply the factors one after the other, A of {inner}x{columns} and then B of {rows}x{inner}: "
                "base(x) + scale * F.linear(F.linear(x, A), B)."
            ),
            confidence="medium",
            evidence=(
                Evidence.ms("making the weights", sum(row.ns for row in made), f"{work.source}, per step"),
                Evidence.ms("their gradients", sum(row.ns for row in graded), f"{work.source}, per step"),
            ),
        )


def _merged(row: OpWorkTime) -> _Merged | None:
    """The weight that a row may make of two thin factors."""
    factors = _matrices(row)
    if row.op != "aten::mm" or row.phase == "backward" or len(factors) != 2 or len(row.shapes.split()) != 2:
        return None
    (rows, inner), (_, columns) = factors
    if inner * _LOW > min(rows, columns):
        return None
    return _Merged((rows, columns), inner, row.calls, row.precision or "float32")


def _inputs(merged: _Merged, rows: Sequence[OpWorkTime]) -> int:
    """How many rows of input a layer with this weight reads; 0: no layer reads it."""
    for row in rows:
        factors = _matrices(row)
        if row.op in _PRODUCTS and row.phase != "backward" and len(factors) > 1:
            first, second = factors[-2:]
            # A product with the weight has its whole inner size: the one that makes it has the low rank.
            if merged.inner not in (first[1], second[0]) and _is(second, merged):
                return first[0]
    return 0


def _forward_ops(at: Location, merged: _Merged, rows: Sequence[OpWorkTime]) -> Iterator[str]:
    """The ops of a line's function on tensors that are the weight's size, or its factors, and no others."""
    return (
        row.op
        for row in rows
        if row.phase != "backward"
        and row.at is not None
        and (row.at.file, row.at.function) == (at.file, at.function)
        and _makes(row, merged)
    )


def _makes(row: OpWorkTime, merged: _Merged) -> bool:
    """Whether an op makes the weight, or takes its gradient apart: all of its tensors are the weight or a factor."""
    rows, columns = merged.sizes
    thin = {(rows, merged.inner), (columns, merged.inner)}
    shapes = _matrices(row)
    known = (_is(one, merged) or one in thin or one[::-1] in thin for one in shapes)
    return bool(shapes) and len(shapes) == len(row.shapes.split()) and all(known)


def _grades(row: OpWorkTime, merged: _Merged) -> bool:
    """Whether an op computes the gradient of the whole weight, from the inputs and the gradients of the layer."""
    factors = _matrices(row)
    if row.op != "aten::mm" or row.phase != "backward" or len(factors) != 2:
        return False
    (rows, inner), (_, columns) = factors
    return inner != merged.inner and _is((rows, columns), merged)


def _are_frozen(weights: Sequence[_Merged], rank: Rank | None) -> bool:
    """Whether the optimizers have fewer elements than these weights: then these are not trained."""
    trained = sum(one.elements for one in rank.optimizers) if rank is not None else 0
    return 0 < trained < sum(one.calls * one.sizes[0] * one.sizes[1] for one in weights)


def _after_ns(merged: _Merged, rows: Sequence[OpWorkTime], limits: MachineLimits | None) -> float:
    """What the products with the factors take at the machine's limit, twice; 0: not known."""
    if limits is None:
        return 0.0
    inputs, thin = _inputs(merged, rows), sum(merged.sizes)
    flops = _OF_A_FACTOR * 2 * inputs * merged.inner * thin
    moved = _OF_A_FACTOR * 4 * (merged.inner * (thin + 2 * inputs) + inputs * thin)
    return _THIN * merged.calls * limits.op_limit_ns(flops, moved, merged.precision, "matmul")


def _is(shape: _Shape, merged: _Merged) -> bool:
    return shape in (merged.sizes, merged.sizes[::-1])


def _matrices(row: OpWorkTime) -> list[_Shape]:
    """The inputs of an op that are matrices: (rows, columns)."""
    shapes = (tuple(map(int, text.split("x"))) for text in row.shapes.split() if text.replace("x", "").isdigit())
    return [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
