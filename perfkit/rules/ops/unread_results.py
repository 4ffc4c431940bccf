"""Ops compute in each step what nothing reads.

Problem: the last blocks of a network run although features of the first ones are used; a head, attention weights, a
reconstruction or a metric is computed and dropped. Their time can be had without a change of the results.

How it shows: in one step, in which ops are listened to, no other op, no backward, no update and no Python reads what
the ops below a line compute, directly or through other ops, and it is gone at the step's end. Their share of the step
is 5% or more; in a step without a backward, at most half.

Causes: all layers of a pretrained network for a loss on features; `hidden_states[-4]`; an auxiliary head whose loss was
taken out; `need_weights=True`; a decoder that runs where only codes are trained.

Fix: end where the last result that is used was computed, or leave the call out.

    self.features = vgg16(weights="DEFAULT").features[:16].eval()      # not all 31 for relu1_2, relu2_2, relu3_3
    encoder.layer = encoder.layer[:-3]                                  # transformers: for hidden_states[-4]
    y, _ = self.attention(x, x, x, need_weights=False)

Where some steps read it, as for a report, compute it in these. If it draws random numbers (dropout), later ones differ
without it. A module that is left out for good may be removed, else DistributedDataParallel waits for its gradients.

Saving: the time of these ops, which have no backward, with an error of a quarter.

Source: one step whose ops are listened to, on a CPU. Nothing is said of tensors of subclasses, of programs whose other
threads compute, and of what variables or lists still hold when a backward begins or the step ends. 5% of the step and a
quarter for the error of a single step were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import StepBudget
from perfkit.run.records import Lines, Phase, UnreadResults

ID = "unread-results"
CLAIMS = (*COMPUTING, *PYTHON)
#: What need not be computed again, or that often, need not be read either.
FOLLOWS_AT_LINE = ("unused-rows", "repeated-work", "unexpected-call-count", "metric-in-step", "growing-step")

#: The error of shares that come from one step: chosen.
_ERROR = 0.25
#: Phases whose ops are not looked at.
_OTHERS: tuple[Phase, ...] = (
    *("data", "transfer", "backward", "optimizer"),
    *("validation", "callbacks", "logging", "checkpoint"),
)


def check(step: StepBudget, lines: Lines) -> Iterator[Finding]:
    """Find ops whose results nothing reads, and the line that leads to them."""
    others_ns = sum(part.ns for name in _OTHERS if (part := step.phase(name)) is not None)
    for one in lines.unread_results:
        cost = one.host_ns / max(1, one.of_ns) * max(0, step.wall_ns - others_ns)
        if step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=((1 - _ERROR) * cost, min(step.wall_ns, (1 + _ERROR) * cost)),
            spent=one.busiest,
            change=one.at,
            message=f"{_subject(one)} what nothing reads: {step.shown(cost)}.",
            advice=(
                "End with the last layer whose result is used, or leave the call out; if some steps read the result, "
                f"compute it in these.{' Later random numbers differ then.' if one.draws else ''}"
            ),
            confidence="medium",
            evidence=(
                Evidence("ops whose results nothing reads", one.ops, "per step", "a step whose ops are listened to"),
                Evidence("of the time of all ops", percent(one.host_ns, one.of_ns), "", "of the forward"),
            ),
        )


def _subject(one: UnreadResults) -> str:
    ops = f"{one.ops:,} ops" if one.ops > 1 else "an op"
    if one.called is not None:
        return f"In line {one.line} {ops} of {one.called} compute{'s' * (one.ops == 1)}"
    text = f"{ops} of line {one.line} compute{'s' * (one.ops == 1)}"
    return text[0].upper() + text[1:]
