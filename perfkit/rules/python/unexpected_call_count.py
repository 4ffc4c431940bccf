"""A module is called again on an input that it already had in the same step.

Problem: the model, or a part of it, computes an answer that is already known. Each such call costs a forward, and a
backward where gradients flow through the answer.

How it shows: in the step that is traced by line, a module object is called from another line, or by a function that
another line calls, with the very tensors of an earlier call: the same memory, unchanged. Calls with a reason are left
out: dropout is active; the parameters were updated in between and a backward follows (two networks that train against
each other); activation checkpointing runs in the backward.

Causes: a second forward for a metric after the step; each loss, or each head, calls the encoder itself; a helper calls
the model although its caller did.

Fix: call it once and pass the answer on.

    scores = model(x)
    loss = criterion(scores, y)
    hits += (scores.detach().argmax(1) == y).sum()      # not: model(x) again

    code = self.encoder(x)
    loss = self.rebuilt(x, code) + self.small(code)

Saving: the time of those calls, and of their part of the backward, 25% more or less. The share of a call in its phase
comes from the traced step, the length of the phase from the steps outside windows.

Source: one step that is traced by line, in which Python is slower than in others. The threshold is 5% of the step. 25%
for the error of a single step was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, shown_function, times
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import StepBudget
from perfkit.rules._places import helper_call
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import Lines

ID = "unexpected-call-count"
CLAIMS = (*COMPUTING, *PYTHON)

#: The error of shares that come from one traced step: chosen.
_ERROR = 0.25


def check(step: StepBudget, lines: Lines) -> Iterator[Finding]:
    """Find calls of modules whose answer was known, and what they cost with their backward."""
    again = [
        (round(cost_of_calls(calls.again_ns, row, lines, step, backward=calls.again_backward)), calls, row)
        for row in lines.traced
        for calls in row.modules
        if calls.again
    ]
    cost = min(step.wall_ns, sum(ns for ns, _, _ in again))
    if step.is_negligible(cost):
        return
    _, calls, row = max(again, key=lambda one: one[0])
    repeats = calls.again_at or row.at
    # A helper that several lines call is not to be edited, but one of those.
    repeats = helper_call(repeats, lines) or repeats
    count = sum(calls.again for _, calls, _ in again)
    backward = ", its backward included" if calls.again_backward else ""
    yield step.finding(
        cost=cost,
        saving=((1 - _ERROR) * cost, min(step.wall_ns, (1 + _ERROR) * cost)),
        spent=row,
        change=repeats,
        message=(
            f"{calls.module} is called {times(count)} more per step on an input that it already had: "
            f"{step.shown(cost)}{backward}."
        ),
        advice=f"Call {calls.module} once per step and pass its answer to {shown_function(repeats)}.",
        evidence=tuple(
            Evidence.ms(
                f"{calls.module} in line {row.line}",
                ns,
                f"{calls.again} calls, {ms(calls.again_ns)} in the traced step",
            )
            for ns, calls, row in again
        ),
    )
