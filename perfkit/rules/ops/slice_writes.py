"""The step writes one slice of a tensor after the other, under autograd.

Problem: a write to a part of a tensor whose gradient is needed makes a node of its own, whose backward copies the
gradient of the whole tensor. With n writes to n parts, the backward's work grows with the square of n.

How it shows: the backward has eight nodes of that kind (`CopySlices`) or more per step, and they take 5% of the step or
more.

Causes: results of time steps, layers or particles that are written into `torch.zeros(...)` in a loop; a mask that is
applied by `x[:, i] = ...`.

Fix: collect the parts, and join them once.

    series = []
    for t in range(days):
        state = update(state, rain[t])
        series.append(state)                      # not: series[t] = state
    series = torch.stack(series)

Saving: the time of these nodes, at least 70% of it (chosen): joining the parts, and its backward, takes some.

Source: `torch/csrc/autograd/functions/tensor.h` describes the node: it copies the gradient of the base, and gives the
part that was written to the function of the write. The thresholds were chosen. In a model of 200 days 37% of the step
was said, and 33% of the loop saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import times
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import LATE, ON_DEVICE, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.patterns import Patterns

ID = "slice-writes"
CLAIMS = (
    *(Selector(owner=owner, phase="backward") for owner in ("computing", "op overhead")),
    LATE,
    ON_DEVICE,
)

#: Writes per step from which on they are a loop: chosen, as for loop-over-samples.
_MANY = 8
#: The share of the cost that is saved at least: chosen.
_MINIMUM = 0.7


def check(step: StepBudget, patterns: Patterns) -> Iterator[Finding]:
    """Find writes to slices, and what their nodes of the backward take."""
    one = patterns.slice_writes
    if one is None or one.count < _MANY:
        return
    cost = step.of_pattern(one.ns, patterns)
    if step.is_negligible(cost):
        return
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=one.at,
        message=(
            f"A slice of a tensor is written {times(one.count)} per step under autograd, and each write's backward "
            f"copies the gradient of the whole tensor: {step.shown(cost)}."
        ),
        advice="Append the parts to a list in the loop, and join them once with torch.stack or torch.cat.",
        confidence="medium",
        evidence=(
            Evidence("CopySlices nodes", round(one.count), "per step", patterns.source),
            Evidence.ms("their time", one.ns, f"{patterns.source}, per step"),
        ),
    )
