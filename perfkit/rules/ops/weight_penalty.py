"""A loss sums up the squares of the model's parameters, which the optimizer does for nothing.

Problem: an L2 penalty that is written by hand makes a tensor of squares of each parameter, sums it up, makes a second
gradient of each parameter in the backward, and adds that to the first: some ten passes over all parameters. The
optimizer's `weight_decay` is one multiplication while it has the parameter at hand.

How it shows: a line squares parameters and sums them up to one number, with a backward; what the ops on tensors of
these shapes take there is 5% of the step or more.

Causes: `loss + l2 * sum(p.pow(2).sum() for p in model.parameters())`, or the same with `torch.norm(p)`.

Fix: the gradient of `l2 * p ** 2` is `2 * l2 * p`, which SGD and Adam add by themselves.

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=2 * l2)

AdamW's weight decay is another one: it does not go through the moments. Where only some parameters have a penalty, give
them a parameter group of their own.

Saving: the ops of that line, forward and backward, and the addition of the second gradient, without one pass of the
optimizer; at least 70% of that (chosen).

Source: torch's documentation of `torch.optim.Adam` (`weight_decay`); the ops of one step. Of a program with 5.6 million
parameters 22 to 50% of the loop was saved, in three pairs of its author's; 35% is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.run.records import Lines, MachineLimits, WeightPenalty

ID = "weight-penalty"
CLAIMS = COMPUTING

#: The share of the saving that is left at least: chosen.
_MINIMUM = 0.7
#: Bytes per parameter that one more pass of the optimizer moves: it reads the parameter and writes its gradient.
_PASS_BYTES = 12


def check(step: StepBudget, lines: Lines, work: StepWork, limits: MachineLimits | None = None) -> Iterator[Finding]:
    """Find penalties of parameters that are trained, and what the ops on them take."""
    for one in lines.weight_penalties:
        rows = _rows_of(one, work.rows)
        if not any(row.phase == "backward" for row in rows):
            continue  # a norm that is only reported
        added = [row for row in work.rows if row.op == "aten::add_" and row.phase == "backward" and _has(row, one)]
        spent_ns = sum(row.ns for row in (*rows, *added))
        cost = spent_ns * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        pass_ns = limits.op_limit_ns(0, _PASS_BYTES * one.elements, "float32") if limits is not None else 0
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * max(0.0, cost - pass_ns), step.maximum_saving(cost)),
            spent=one.at,
            message=(
                f"A penalty of the squares of {one.elements:,} parameters is computed in "
                f"the loss: {step.shown(cost)}, its backward included."
            ),
            advice="Remove it, and give SGD or Adam weight_decay=2 * l2 for l2 * p ** 2: the gradient is the same.",
            confidence="medium",
            evidence=(
                Evidence.ms("ops on the parameters", sum(row.ns for row in rows), f"{work.source}, per step"),
                Evidence.ms("adding its gradients", sum(row.ns for row in added), f"{work.source}, per step"),
            ),
        )


def _rows_of(one: WeightPenalty, rows: Sequence[OpWorkTime]) -> list[OpWorkTime]:
    """The ops of the line on tensors of the parameters' shapes."""
    return [
        row
        for row in rows
        if row.at is not None and (row.at.file, row.at.line) == (one.file, one.line) and _has(row, one)
    ]


def _has(row: OpWorkTime, one: WeightPenalty) -> bool:
    """Whether an op has an input of the shape of one of the parameters."""
    shapes = {"x".join(map(str, shape)) for shape in one.shapes}
    return any(shape in shapes for shape in row.shapes.split())
