"""Each row of one tensor is compared with each row of another by broadcasting, element by element.

Problem: distances or similarities of all pairs are computed as a tensor of pairs times features, which is written, read
by the next op, and reduced over the features. That is the work of a matrix product without its speed: `n * m * d`
elements go through memory several times, where a product reads `(n + m) * d` of them.

How it shows: a difference or a product of two tensors that both have a dimension of 1 where the other is longer, whose
result is at least 8 times as large as both together, and a reduction of a tensor of that shape in the same function.
So it is in `F.cosine_similarity`, which expands both. What the ops on this shape take is 5% of the step or more.

Causes: `((a[:, None] - b[None]) ** 2).sum(-1)` for nearest neighbours, codebooks, clusters, kernels and contrastive
losses; `(a[:, None] * b[None]).sum(-1)`, or `F.cosine_similarity(a[:, None], b[None], dim=-1)`, for similarities.

Fix: one matrix product.

    distances = torch.cdist(a, b)                          # squared: .square()
    distances = a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)
    similarities = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T

Saving: what the ops on the large tensor take, forward and backward, without two products of these sizes at the limit of
the machine (chosen, for the norms and what the product does not reach) and eight passes over the distances, which with
few features are nearly as large; at least 70% of that (chosen).

Source: the shapes of one step. `torch.cdist` uses a matrix product for more than 25 rows (its documentation). Rounding
differs: squared distances of near points lose digits. Where something else than a square or an absolute value is taken
of the pairs, no product does it, and nothing is reported. Of three programs 49 to 63% of the loop was saved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import MachineLimits

ID = "pairwise-broadcast"
CLAIMS = COMPUTING

#: The result is this many times as large as both tensors together (chosen), and has a sum to save.
_LARGER, _FEATURES = 8, 2
#: The share of the saving that is left at least, and products that the fix takes at most (both chosen).
_MINIMUM, _PRODUCTS = 0.7, 2
#: Times that the fix reads or writes the distances beside the product: two sums, and as much in the backward.
_PASSES = 8
_PAIRS = re.compile(r"^aten::(sub|mul)$")
_REDUCES = re.compile(r"^aten::(sum|mean|norm|linalg_vector_norm)$")
#: What a cosine does to each of both tensors, after it has expanded them.
_NORMS = re.compile(r"^aten::(div|linalg_vector_norm)$")
#: What a product or a distance does of the pairs; after anything else it cannot take their place.
_OF_PRODUCTS = re.compile(r"^aten::(sub|mul|pow|square|abs|neg|sum|mean|norm|linalg_vector_norm|sqrt|copy_|clone)_?$")

_Shape = tuple[int, ...]


class _Paired(NamedTuple):
    """An op that pairs rows, with the shapes of both tensors and of its result."""

    row: OpWorkTime
    one: _Shape
    other: _Shape
    wide: _Shape
    at: Location
    cosine: bool = False


def check(step: StepBudget, work: StepWork, limits: MachineLimits | None = None) -> Iterator[Finding]:
    """Find pairs that are made by broadcasting and reduced, and what the ops on them take."""
    known: set[tuple[str, str | None, _Shape]] = set()
    for row in work.rows:
        paired = _paired(row) or _cosine(row, work.rows)
        if paired is None or (key := (paired.at.file, paired.at.function, paired.wide)) in known:
            continue
        known.add(key)
        rows = _on_pairs(paired, work.rows)
        forward = [one.op for one in rows if one.phase != "backward"]
        of_products = (bool(_OF_PRODUCTS.match(op)) or (paired.cosine and bool(_NORMS.match(op))) for op in forward)
        if not any(map(_REDUCES.match, forward)) or not all(of_products):
            continue
        spent_ns = sum(one.ns for one in rows)
        cost = spent_ns * step.wall_ns / max(1, work.step_ns)
        if not step.is_negligible(cost):
            yield _finding(step, work, paired, rows, _after_ns(paired, rows, limits) * cost / max(1, spent_ns))


def _finding(step: StepBudget, work: StepWork, paired: _Paired, rows: Sequence[OpWorkTime], after_ns: float) -> Finding:
    spent_ns = sum(one.ns for one in rows)
    cost = spent_ns * step.wall_ns / max(1, work.step_ns)
    saving = max(0.0, cost - after_ns)
    if paired.cosine:
        form = "F.normalize(a, dim=1) @ F.normalize(b, dim=1).T"
    elif paired.row.op == "aten::mul":
        form = "a @ b.T"
    else:
        form = "torch.cdist(a, b, p=1)" if any(one.op == "aten::abs" for one in rows) else "torch.cdist(a, b)"
    return step.finding(
        cost=cost,
        saving=(_MINIMUM * saving, step.maximum_saving(saving)),
        spent=busiest_place(rows) or paired.at,
        change=paired.at,
        message=(
            f"{paired.row.op} of {_text(paired.one)} and {_text(paired.other)} makes {_text(paired.wide)}, which is "
            f"reduced again: {step.shown(cost)}."
        ),
        advice=f"Do not make a tensor of all pairs: {form}.",
        confidence="medium",
        evidence=(
            Evidence.ms("ops on the pairs", spent_ns, f"{work.source}, per step"),
            Evidence("elements of the pairs", math.prod(paired.wide), "", "the shapes of a step's ops"),
        ),
    )


def _paired(row: OpWorkTime) -> _Paired | None:
    """The row as an op that pairs rows of two tensors; None where it is none, or no line of the user's calls it."""
    if row.at is None or row.phase == "backward" or _PAIRS.match(row.op) is None:
        return None
    shapes = [_shape(text) for text in row.shapes.split()]
    if len(shapes) < 2 or max(map(len, shapes[:2])) < 3:
        return None
    rank = max(map(len, shapes[:2]))
    one, other = ((1,) * (rank - len(shape)) + shape for shape in shapes[:2])
    wide = tuple(map(max, one, other))
    if not any(a > b == 1 for a, b in zip(one, other, strict=True)) or not any(
        b > a == 1 for a, b in zip(one, other, strict=True)
    ):
        return None
    return _Paired(row, one, other, wide, row.at) if _is_large(one, other, wide) else None


def _cosine(row: OpWorkTime, rows: Sequence[OpWorkTime]) -> _Paired | None:
    """The row as the product of a cosine similarity of rows that it has expanded to all pairs."""
    shapes = row.shapes.split()
    if row.at is None or row.phase == "backward" or row.op != "aten::mul" or len(shapes) < 2 or shapes[0] != shapes[1]:
        return None
    expanded = dict.fromkeys(
        one.expanded
        for one in rows
        if one.at == row.at and one.expanded and _NORMS.match(one.op) and one.shapes.split()[0] == shapes[0]
    )
    if len(expanded) != 2:
        return None
    one, other = map(_shape, expanded)
    wide = tuple(map(max, one, other))
    if wide != _shape(shapes[0]) or not _is_large(one, other, wide):
        return None
    return _Paired(row, one, other, wide, row.at, cosine=True)


def _is_large(one: _Shape, other: _Shape, wide: _Shape) -> bool:
    return wide[-1] >= _FEATURES and math.prod(wide) >= _LARGER * (math.prod(one) + math.prod(other))


def _shape(text: str) -> _Shape:
    return tuple(map(int, text.split("x")))


def _on_pairs(paired: _Paired, rows: Sequence[OpWorkTime]) -> list[OpWorkTime]:
    """The op, and the ops in its function that have its result, or one of its shape, among their inputs."""
    wide = _text(paired.wide)
    return [
        row
        for row in rows
        if row is paired.row
        or (
            row.at is not None
            and (row.at.file, row.at.function) == (paired.at.file, paired.at.function)
            and wide in row.shapes.split()
        )
    ]


def _after_ns(paired: _Paired, rows: Sequence[OpWorkTime], limits: MachineLimits | None) -> float:
    """What products of these sizes, and sums of their results, take at the machine's limit; 0: not known."""
    if limits is None:
        return 0.0
    flops = 2 * math.prod(paired.wide)
    moved = 4 * (math.prod(paired.one) + math.prod(paired.other))
    product_ns = limits.op_limit_ns(flops, moved, paired.row.precision or "float32", "matmul")
    passes_ns = limits.op_limit_ns(0, _PASSES * 4 * math.prod(paired.wide[:-1]), "float32")
    return (_PRODUCTS * product_ns + passes_ns) * max(1.0, paired.row.calls)


def _text(shape: _Shape) -> str:
    return "x".join(map(str, shape))
