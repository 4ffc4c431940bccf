"""A matrix of which nearly all elements are zero is multiplied as a dense one.

Problem: a product computes with each zero as with any other number, and reads it from memory. A one-hot matrix times a
table copies rows of the table; a graph's adjacency matrix times features adds up those of the neighbours. Both can be
done without the zeros. Attention over the edges of a graph that is computed for all pairs of nodes does so in each op.

How it shows: of a matrix that goes into a product, has no gradient and is not all zeros, at most 1% of the elements are
not zero; or of a softmax of masked scores. The products with it, in the forward and in the backward, take 5% of the
step or more; of attention all ops of its class or function on matrices of its shape count.

Causes: `F.one_hot(ids, n).float() @ table`, `nn.Linear` over one-hot or bag-of-words features, a dense adjacency or
incidence matrix, a mask or a permutation that is multiplied, attention whose scores an adjacency matrix masks.

Fix: look up, or keep the matrix sparse.

    rows = F.embedding(ids, linear.weight.T)         # not: linear(F.one_hot(ids, n).float()); add its bias
    nearby = adjacency.to_sparse_csr()               # once, before the training, where it stays the same
    messages = nearby @ features
    out.index_add_(0, target, weight[:, None] * features[source])      # the same by its edges
    e = F.leaky_relu(a[target] + b[source])          # attention: scores, softmax and sums of the edges alone

Saving: 60% to 100% of the time of these products, 30% to 100% where lookups take their place, of attention 55 to 100%.

Source: the inputs of one step's products. With 1% of 1,000 to 4,000 rows and columns a sparse (CSR) product took 14 to
34% of the time of the dense one, its backward included, with 5% 58 to 147%; a lookup took 13 to 82% of the time of a
product with 30 to 5,000 one-hot columns; attention by its edges took 5 to 53% (CALIBRATION.md). On a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines, SparseInput

ID = "sparse-as-dense"
CLAIMS = COMPUTING

#: The share of elements that are not zero up to which a sparse product is faster on a CPU by more than a half, and the
#: share of the products that is saved at least (both measured: CALIBRATION.md).
_SPARSE, _MINIMUM = 0.01, 0.6
#: The same of lookups in place of one-hot rows, and of attention by its edges (whose scores are sums).
_OF_LOOKUP, _OF_EDGES = 0.3, 0.55
#: Products, which count at their own line alone: of attention that of its queries and keys has no zeros in its inputs.
_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "matmul", "linear"))

_LOOK_UP = (
    "Look the rows up: table[ids], or F.embedding(ids, linear.weight.T) plus the bias, in place of the product with "
    "one_hot(ids)."
)
_KEEP_SPARSE = (
    "Where it is the same in each step, make it sparse once (matrix.to_sparse_csr()) and multiply by that; else add up "
    "by its indices: out.index_add_(0, target, weight[:, None] * features[source])."
)
_ADD_UP = (
    "Add up by the indices of what is not zero: out.index_add_(0, target, weight[:, None] * features[source]), with "
    "the rows of all samples one after the other."
)
_BY_EDGES = (
    "Keep the pairs as a list, once: target, source = mask.nonzero(as_tuple=True). Compute the scores of these pairs "
    "alone, a[target] + b[source] or (q[target] * k[source]).sum(-1); for their softmax subtract the largest of each "
    "target (scatter_reduce, amax), take exp and divide by its sum per target (index_add_); then add up: "
    "out.index_add_(0, target, weight[:, None] * features[source])."
)


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find products with matrices of zeros, and what they take."""
    left = list(work.rows)
    for one in lines.sparse_inputs:
        if one.nonzero > _SPARSE * one.elements:
            continue
        rows = [row for row in left if _is_product_with(row, one) or (one.is_attention and _is_of_attention(row, one))]
        # Two products of one attention share its other ops.
        left = [row for row in left if row not in rows]
        spent_ns = sum(row.ns for row in rows)
        cost = spent_ns * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        matrices = max(1, one.elements // (one.shape[0] * one.shape[1]))
        yield step.finding(
            cost=cost,
            saving=(_minimum(one) * cost, step.maximum_saving(cost)),
            spent=busiest_place(rows) or one.at,
            change=one.at,
            message=f"{_said(one, one.nonzero // matrices)}: {step.shown(cost)}.",
            advice=_advice(one, matrices),
            confidence="medium",
            evidence=(
                Evidence("elements that are not zero", one.nonzero, f"of {one.elements:,}", "a step's products"),
                Evidence.ms(
                    "ops on it" if one.is_attention else "products with it", spent_ns, f"{work.source}, per step"
                ),
            ),
        )


def _minimum(one: SparseInput) -> float:
    return _OF_EDGES if one.is_attention else _OF_LOOKUP if one.is_one_hot else _MINIMUM


def _said(one: SparseInput, nonzero: int) -> str:
    rows, columns = one.shape
    if one.is_attention:
        times = "" if one.calls == 1 else f", {one.calls} times per step"
        return (
            f"Attention is computed for all {rows:,} x {columns:,} pairs, of which its mask leaves {nonzero:,}{times}"
        )
    times = "" if one.calls == 1 else f", in {one.calls} products per step"
    return (
        f"Of a {rows:,} x {columns:,} matrix {nonzero:,} elements are not zero, and it is multiplied as a dense "
        f"one{times}"
    )


def _advice(one: SparseInput, matrices: int) -> str:
    if one.is_attention:
        return _BY_EDGES
    return _LOOK_UP if one.is_one_hot else _KEEP_SPARSE if matrices == one.calls else _ADD_UP


def _is_of_attention(row: OpWorkTime, one: SparseInput) -> bool:
    """Whether the op, other than a product, runs on all pairs in the class or function of the attention."""
    if row.at is None or row.at.file != one.file or row.op in _PRODUCTS:
        return False
    if row.at.function is None or _owner(row.at.function) != _owner(one.function):
        return False
    return _broadcast(row.shapes.split()) in (one.shape, one.shape[::-1])


def _owner(function: str) -> str:
    """The class of a method; a function that has none is its own."""
    owner = function.rpartition(".")[0]
    return function if not owner or owner.endswith("<locals>") else owner


def _broadcast(shapes: Iterable[str]) -> tuple[int, int] | None:
    """Rows and columns of what ops of elements make of these shapes; None where they do not fit together."""
    found = [1, 1]
    for shape in shapes:
        lengths = [int(length) for length in shape.split("x")][-2:]
        for at, length in enumerate([1] * (2 - len(lengths)) + lengths):
            if length not in (1, found[at]) and found[at] != 1:
                return None
            found[at] = max(found[at], length)
    return found[0], found[1]


def _is_product_with(row: OpWorkTime, one: SparseInput) -> bool:
    """Whether the op is a product at that line, and one of its inputs has this shape, or is transposed."""
    if row.at is None or (row.at.file, row.at.line) != (one.file, one.line) or not row.flops:
        return False
    shapes = [tuple(map(int, each.split("x")[-2:])) for each in row.shapes.split()]
    if not one.is_attention:
        return any(shape in (one.shape, one.shape[::-1]) for shape in shapes)
    # Its gradient is the result of a product. One with a matrix for all samples joins their rows.
    result = [(left[-2], right[-1]) for left, right in pairwise(shapes) if len(left) == len(right) == 2]
    height, width = one.shape
    return any(
        len(shape) == 2
        and ((shape[1] == width and not shape[0] % height) or (shape[0] == width and not shape[1] % height))
        for shape in (*shapes, *result)
    )
