"""A diagonal matrix is factored, or solved with, as a dense one.

Problem: of a Gaussian with independent dimensions that is written with a covariance matrix, a Cholesky factor is made
and triangular systems are solved with it, in each step and with their backward. Of a diagonal matrix all of this is a
square root and a division of each element.

How it shows: all matrices of a size that the line's Cholesky factorizations and triangular solves get are diagonal. The
ops of these lines, without products of layers, take 5% of the step or more.

Causes: `MultivariateNormal(mean, torch.diag_embed(variance))`, also with `scale_tril=`; `torch.linalg.solve` with a
matrix that a vector was made into.

Fix: a distribution, or an expression, of the elements.

    # of both distributions of a kl_divergence; scale in place of variance.sqrt() where scale_tril was given
    Independent(Normal(mean, variance.sqrt()), 1)

Saving: 50% (chosen) to 100% of the time of these ops.

Source: the arguments of the ops of one step. On a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines

ID = "diagonal-as-dense"
CLAIMS = COMPUTING

#: The share of the cost that is saved at least (chosen).
_MINIMUM = 0.5
#: Of layers whose result goes into the distribution in the same line.
_OF_LAYERS = re.compile(r"aten::(addmm|mm|linear|.*conv.*|native_(layer|batch)_norm.*)$")


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find lines that factor, or solve with, diagonal matrices only, and what they take together."""
    places: set[tuple[str, int | None]] = {(one.file, one.line) for one in lines.diagonal_matrices}
    rows = [row for row in work.rows if _is_of(row, places)]
    spent_ns = sum(row.ns for row in rows)
    cost = spent_ns * step.wall_ns / max(1, work.step_ns)
    if not places or step.is_negligible(cost):
        return
    first, size = lines.diagonal_matrices[0], max(one.size for one in lines.diagonal_matrices)
    calls = sum(one.calls for one in lines.diagonal_matrices)
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=busiest_place(rows),
        change=first.at,
        message=(
            f"{calls} factorizations and solves per step get diagonal matrices only (of up to {size:,} rows): "
            f"{step.shown(cost)}."
        ),
        advice="Use a distribution of the elements: Independent(Normal(mean, variance.sqrt()), 1) in place of "
        "MultivariateNormal; else divide by the diagonal.",
        confidence="medium",
        evidence=(Evidence.ms("the ops of these lines", spent_ns, f"{work.source}, per step"),),
    )


def _is_of(row: OpWorkTime, places: set[tuple[str, int | None]]) -> bool:
    return row.at is not None and (row.at.file, row.at.line) in places and _OF_LAYERS.match(row.op) is None
