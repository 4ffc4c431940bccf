"""Gradients are filled with zeros instead of set to None.

Problem: `zero_grad(set_to_none=False)` writes zeros over every gradient, and the backward then reads them back
and adds to them. With None the backward's own result becomes the gradient: neither pass over memory happens.

How it shows: a gradient is the same tensor after `zero_grad` as before it, and the trace holds the filling and
the adding.

Causes: `zero_grad(set_to_none=False)`; `for p in model.parameters(): p.grad.zero_()`; `model.zero_grad` of old
code.

Fix: let it be the default, and expect None where code reads gradients.

    optimizer.zero_grad()            # set_to_none=True since torch 2.0

Gain: the time in `zero_grad` and that of adding to gradients (`AccumulateGrad`), both of the trace, by
their share of its step; at the high end on a CPU 15% more, since the rest then finds its caches as it left
them. Low end: three quarters, since the gradient that is kept is still read once, by the optimizer, from a
memory that is no longer warm. Not counted is the memory that the gradients hold during the forward.

Source: torch's tuning guide, "use parameter.grad = None". From 5% of the step on (see input-bound).
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import first_call
from perfkit.rules._step_budget import NEGLIGIBLE, busiest_device, severity_of, trace_scale, whole_of, with_beyond

ID = "gradients-not-set-to-none"

_ZEROES = "Optimizer.zero_grad#"
_ADDS = "torch::autograd::AccumulateGrad"
#: What of it goes for certain (see above).
_GOES = 0.75


def check(measured: Measured) -> Iterator[Finding]:
    """Find gradients that are kept and filled, and the line that does it."""
    rank, whole, ops = measured.rank, whole_of(measured), measured.ops
    if rank is None or whole is None or ops is None or not ops.steps:
        return
    if not any(optimizer.keeps_gradients for optimizer in rank.optimizers):
        return
    on_device = busiest_device(measured) is not None
    zeroing = [row for row in measured.ranges if row.name.startswith(_ZEROES)]
    adding = [row for row in ops.rows if row.name == _ADDS]
    if on_device:
        parts = [sum(row.device_busy_ns or 0 for row in zeroing), sum(row.device_ns or 0 for row in adding)]
    else:
        parts = [sum(row.host_ns for row in zeroing), sum(row.total_ns for row in adding)]
    scale = trace_scale(measured) / ops.steps
    cost_ns = min(whole.wall_ns, round(sum(parts) * scale))
    if not parts[0] or cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    at = first_call(rank, "set_to_none", "zero_grad")
    elements = sum(optimizer.elements for optimizer in rank.optimizers if optimizer.keeps_gradients)
    source = f"trace, {ops.steps} steps"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Gradients of {elements:,} parameters are filled with zeros and then added to, "
            f"which takes {ms(cost_ns)} of the {ms(whole.wall_ns)} {whole.per}."
        ),
        advice="Call optimizer.zero_grad() as it is (set_to_none=True).",
        confidence="high",
        evidence=(
            Evidence("zero_grad", round(parts[0] * scale / 1e6, 3), "ms", source),
            Evidence("adding to gradients", round(parts[1] * scale / 1e6, 3), "ms", source),
        ),
        file=at.file if at else None,
        line=at.line if at else None,
        function=at.function if at else None,
        cost_ns=cost_ns,
        saving_low_ns=round(_GOES * cost_ns),
        saving_high_ns=with_beyond(cost_ns, measured, whole),
    )
