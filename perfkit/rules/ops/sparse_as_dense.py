"""A matrix of which nearly all elements are zero is multiplied as a dense one.

Problem: a product computes with each zero as with any other number, and reads it from memory. A one-hot matrix times a
table copies rows of the table; a graph's adjacency matrix times features adds up those of the neighbours. Both can be
done without the zeros.

How it shows: of a matrix that goes into a product, has no gradient and is not all zeros, at most 1% of the elements are
not zero. The products with it, in the forward and in the backward, take 5% of the step or more.

Causes: `F.one_hot(ids, n).float() @ table`, `nn.Linear` over one-hot or bag-of-words features, a dense adjacency or
incidence matrix, a mask or a permutation that is multiplied.

Fix: look up, or keep the matrix sparse.

    rows = F.embedding(ids, linear.weight.T)         # not: linear(F.one_hot(ids, n).float()); add its bias
    nearby = adjacency.to_sparse_csr()               # once, before the training, where it stays the same
    messages = nearby @ features
    out.index_add_(0, target, weight[:, None] * features[source])      # the same by its edges

Saving: 60% to 100% of the time of these products, 30% to 100% where lookups take their place.

Source: the inputs of one step's products. With 1% of 1,000 to 4,000 rows and columns a sparse (CSR) product took 14 to
34% of the time of the dense one, its backward included, with 5% 58 to 147%; a lookup took 13 to 82% of the time of a
product with 30 to 5,000 one-hot columns (CALIBRATION.md). On a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

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
#: The same of lookups in place of one-hot rows.
_OF_LOOKUP = 0.3

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


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find products with matrices of zeros, and what they take."""
    for one in lines.sparse_inputs:
        rows = [row for row in work.rows if _is_product_with(row, one)]
        spent_ns = sum(row.ns for row in rows)
        cost = spent_ns * step.wall_ns / max(1, work.step_ns)
        if one.nonzero > _SPARSE * one.elements or step.is_negligible(cost):
            continue
        matrices = max(1, one.elements // (one.shape[0] * one.shape[1]))
        times = "" if one.calls == 1 else f", in {one.calls} products per step"
        yield step.finding(
            cost=cost,
            saving=((_OF_LOOKUP if one.is_one_hot else _MINIMUM) * cost, step.maximum_saving(cost)),
            spent=busiest_place(rows) or one.at,
            change=one.at,
            message=(
                f"Of a {one.shape[0]:,} x {one.shape[1]:,} matrix {one.nonzero // matrices:,} elements are not zero, "
                f"and it is multiplied as a dense one{times}: {step.shown(cost)}."
            ),
            advice=_LOOK_UP if one.is_one_hot else _KEEP_SPARSE if matrices == one.calls else _ADD_UP,
            confidence="medium",
            evidence=(
                Evidence("elements that are not zero", one.nonzero, f"of {one.elements:,}", "a step's products"),
                Evidence.ms("products with it", spent_ns, f"{work.source}, per step"),
            ),
        )


def _is_product_with(row: OpWorkTime, one: SparseInput) -> bool:
    """Whether the op is a product at that line, and one of its inputs has this shape, or is transposed."""
    if row.at is None or (row.at.file, row.at.line) != (one.file, one.line) or not row.flops:
        return False
    shape = [str(length) for length in one.shape]
    return any(each.split("x")[-2:] in (shape, shape[::-1]) for each in row.shapes.split())
