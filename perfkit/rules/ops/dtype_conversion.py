"""Kernels only convert tensors from one floating dtype to another.

Problem: a conversion between float32 and a half-precision type reads and writes the whole tensor and computes nothing;
its gradient is converted back in the backward pass.

How it shows: on a device, `aten::copy_` between two dtypes inside `aten::_to_copy`, and their ToCopyBackward0, take 5%
of the step or more. Either the same weights are converted at least twice for each gradient that they get, or large
tensors (4 MiB or more) are converted by the program's own calls or for a loss.

Causes: autocast entered inside a loop over time, whose exit drops the weights that it converted; a layer that converts
its own weight in each call; logits of a large vocabulary converted to float32 for the loss; `.float()` and `.half()`
in each layer; a float32 module in a model in bfloat16.

Fix: one autocast around the whole loop, or weights in bfloat16. One dtype from layer to layer. The loss in chunks of
rows, or by a fused call, which converts what it has just read and writes nothing in float32.

    with torch.autocast("cuda", dtype=torch.bfloat16):    # not inside the loop
        for x in sequence:
            state = cell(x, state)

Saving: of weights, all conversions but one for each gradient. The low end leaves the backward's: without them the
gradients of the loop are summed in the narrow type, which not every model bears. Of other tensors from nothing (the
wide type may be needed) to all.

Source: torch's documentation of autocast. The threshold is 5% of the step; tensors other than weights are information
below 10%. Silent about what autocast converts for
layers (each weight once, activations), weights that get no gradient, and runs without shapes. No correction was timed
on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit._format import ms
from perfkit.findings import Evidence, Finding, Severity
from perfkit.ledger.rows import ON_DEVICE
from perfkit.ledger.step_budget import SMALL, StepBudget
from perfkit.measures.results.patterns import DtypeConversions, Patterns

ID = "dtype-conversion"
CLAIMS = (ON_DEVICE,)
#: One fused call of an attention also removes the conversion for its softmax in float32.
FOLLOWS_AT_LINE = ("attention-unfused",)

#: Conversions of a weight for each of its gradients that make a repeat: autocast makes one (derived).
_REPEATED = 2
#: The last dimension from which a tensor is taken for scores of a vocabulary (chosen): BERT's has 30,522 tokens, and
#: few layers are as wide.
_VOCABULARY = 30_000
_ONCE = "Enter autocast once around the whole loop (its exit drops the converted weights), or convert them before it."
_LOSS = (
    "Compute the loss in chunks of rows or by a fused call (linear layer and cross entropy in one), so that no logits "
    "in float32 are written."
)
_KEEP = "Keep one dtype from layer to layer: modules in the model's dtype, no .float() or .to(dtype) on activations."


def check(step: StepBudget, patterns: Patterns) -> Iterator[Finding]:
    """Find weights that are converted again and again, and large tensors that are converted."""
    if patterns.step_ns is not None:
        return
    weights = [
        one for one in patterns.conversions if one.gradients is not None and one.count >= _REPEATED * one.gradients
    ]
    others = [one for one in patterns.conversions if one.gradients is None]
    yield from _of_weights(step, patterns, weights)
    yield from _of_others(step, patterns, others)


def _of_weights(step: StepBudget, patterns: Patterns, found: Sequence[DtypeConversions]) -> Iterator[Finding]:
    low = step.of_pattern(sum(one.ns * _again(one) for one in found), patterns)
    cost = step.of_pattern(sum((one.ns + one.backward_ns) * _again(one) for one in found), patterns)
    if not found or step.is_negligible(cost):
        return
    count = sum(one.count for one in found)
    gradients = sum(one.gradients or 0 for one in found)
    most = max(found, key=_whole)
    yield step.finding(
        cost=cost,
        saving=(low, cost),
        spent=most.at,
        message=f"Weights are converted from {most.source} to {most.target} {count / gradients:.0f} times for each "
        f"gradient, mostly {most.shape}: all but one cost {ms(cost)}, {step.percent(cost)} of the {step.per}.",
        advice=_ONCE,
        evidence=(
            *_evidence(step, patterns, found),
            Evidence("gradients", round(gradients, 1), "", _per_step(patterns)),
        ),
    )


def _of_others(step: StepBudget, patterns: Patterns, found: Sequence[DtypeConversions]) -> Iterator[Finding]:
    cost = step.of_pattern(sum(map(_whole, found)), patterns)
    if not found or step.is_negligible(cost):
        return
    most = max(found, key=_whole)
    # Whether the wide type is needed is not known: a loss in float32 is what many models are trained with.
    severity: Severity | None = "info" if cost < SMALL * step.wall_ns else None
    logits = most.in_loss or (most.target == "float32" and int(most.shape.rpartition("x")[2]) >= _VOCABULARY)
    yield step.finding(
        severity=severity,
        cost=cost,
        saving=(0, cost),
        spent=most.at,
        message=f"Converting large tensors to another dtype, mostly {most.shape} from {most.source} to {most.target}, "
        f"takes {ms(cost)}, {step.percent(cost)} of the {step.per}.",
        advice=_LOSS if logits else _KEEP,
        evidence=_evidence(step, patterns, found),
    )


def _whole(one: DtypeConversions) -> int:
    return one.ns + one.backward_ns


def _again(one: DtypeConversions) -> float:
    """The share of a weight's conversions that are not needed."""
    return 1 - (one.gradients or 0) / one.count


def _per_step(patterns: Patterns) -> str:
    return f"{patterns.source}, per step"


def _evidence(step: StepBudget, patterns: Patterns, found: Sequence[DtypeConversions]) -> tuple[Evidence, ...]:
    source = _per_step(patterns)
    times = {"in the forward": sum(one.ns for one in found), "in the backward": sum(one.backward_ns for one in found)}
    return (
        Evidence("conversions", round(sum(one.count for one in found), 1), "", source),
        *(Evidence.ms(name, step.of_pattern(ns, patterns), source) for name, ns in times.items() if ns),
    )
