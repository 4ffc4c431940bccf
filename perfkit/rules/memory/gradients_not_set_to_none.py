"""Gradients are filled with zeros instead of set to None.

Problem: `zero_grad(set_to_none=False)` writes zeros over every gradient, and the backward pass reads them back and adds
to them. With None, the result of the backward becomes the gradient, and neither pass over memory happens.

How it shows: a gradient is the same tensor before and after `zero_grad`, and the trace contains the filling and the
adding; both take 5% of the step or more.

Causes: `zero_grad(set_to_none=False)`; `for p in model.parameters(): p.grad.zero_()`; `model.zero_grad` in old code.

Fix: use the default, and expect None where code reads gradients.

    optimizer.zero_grad()            # set_to_none=True since torch 2.0

Saving: the time in `zero_grad` and that of adding to gradients (`AccumulateGrad`), by their share of the trace's step;
on a CPU up to 15% more, because the rest of the step then finds its caches as it left them. The low end is three
quarters (chosen): the optimizer still reads the gradient once, from memory that is no longer cached. The memory that
gradients hold during the forward is not counted.

Source: torch's tuning guide, "use parameter.grad = None". The threshold is 5% of the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import Ops, RangeTime
from perfkit.rules._settings import first_call
from perfkit.run.records import Rank

ID = "gradients-not-set-to-none"
CLAIMS = COMPUTING

_ZEROES = "Optimizer.zero_grad#"
_ADDS = "torch::autograd::AccumulateGrad"
#: The low end of the saving as a share of the cost (chosen, see above).
_LOW = 0.75


def check(step: StepBudget, rank: Rank, ops: Ops, ranges: tuple[RangeTime, ...]) -> Iterator[Finding]:
    """Find gradients that are filled with zeros, and the line that does it."""
    filled = [optimizer for optimizer in rank.optimizers if optimizer.keeps_gradients]
    if not filled or not ops.steps:
        return
    zeroing = [row for row in ranges if row.name.startswith(_ZEROES)]
    adding = [row for row in ops.rows if row.name == _ADDS]
    if step.device is not None:
        parts = [sum(row.device_busy_ns or 0 for row in zeroing), sum(row.device_ns or 0 for row in adding)]
    else:
        parts = [sum(row.host_ns for row in zeroing), sum(row.total_ns for row in adding)]
    scale = step.trace_scale / ops.steps
    cost = min(step.wall_ns, round(sum(parts) * scale))
    if not parts[0] or step.is_negligible(cost):
        return
    source = f"trace, {ops.steps} steps"
    yield step.finding(
        cost=cost,
        saving=(_LOW * cost, step.maximum_saving(cost)),
        spent=first_call(rank, "set_to_none", "zero_grad"),
        message=(
            f"Gradients of {sum(optimizer.elements for optimizer in filled):,} parameters are filled with zeros and "
            f"then added to, which takes {ms(cost)} of the {ms(step.wall_ns)} {step.per}."
        ),
        advice="Call optimizer.zero_grad() without arguments (set_to_none=True is the default).",
        confidence="high",
        evidence=(
            Evidence.ms("zero_grad", parts[0] * scale, source),
            Evidence.ms("adding to gradients", parts[1] * scale, source),
        ),
    )
