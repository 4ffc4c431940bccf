"""A module is called again on an input that it was given before in the same step.

Problem: the model, or a part of it, works out an answer that is known already. Each such call costs a
forward, and a backward where its answer is learnt from.

How it shows: in the step that is traced by line, a module object is called from another line with the very
tensors of an earlier call: the same memory, unchanged. Calls that have a reason are left out: dropout is
active; the parameters were updated in between and a backward follows (two networks that train against each
other); activation checkpointing in the backward.

Causes: a second forward for a metric, after the step; each loss, or each head, calling the encoder for
itself; a helper that calls the model where its caller has done so.

Fix: call it once and hand the answer on.

    scores = model(x)
    loss = criterion(scores, y)
    hits += (scores.detach().argmax(1) == y).sum()      # not: model(x) again

    code = self.encoder(x)
    loss = self.rebuilt(x, code) + self.small(code)

Gain: the time of those calls, and of their part of the backward. The share of a call in its phase is
taken from the traced step, and the phase from the steps outside of windows: 25% more or less is left for the
error of a single step.

Source: one step that is traced by line, and so slower, as far as Python goes, than others. From 5% of the step on.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import traced_ns
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, phase_part, severity_of, whole_of
from perfkit.run.records import ModuleCalls, TracedLine

ID = "unexpected-call-count"

#: How far the shares of one traced step may be off (see above).
_ERROR = 0.25


def check(measured: Measured) -> Iterator[Finding]:
    """Find calls of modules whose answer was known, and what they cost with their backward."""
    whole = whole_of(measured)
    traced = measured.lines.traced if measured.lines is not None else ()
    again = [(row, calls) for row in traced for calls in row.modules if calls.again]
    if whole is None or not again:
        return
    costs = {id(calls): _cost(row, calls, measured, whole) for row, calls in again}
    cost_ns = min(whole.wall_ns, sum(costs.values()))
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    row, calls = max(again, key=lambda one: costs[id(one[1])])
    count = sum(calls.again for _, calls in again)
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"{calls.module} is called {'once' if count == 1 else f'{count} times'} more per step on an input that it "
            f"was given before: {ms(cost_ns)} of the {ms(whole.wall_ns)} {whole.per} "
            f"({percent(cost_ns, whole.wall_ns)}{', backward included' if calls.again_backward else ''})."
        ),
        advice=f"Call {calls.module} once per step and hand its answer to {row.function}.",
        confidence="medium",
        evidence=tuple(
            Evidence(
                f"{calls.module} in line {row.line}",
                round(costs[id(calls)] / 1e6, 3),
                "ms",
                f"{calls.again} calls, {ms(calls.again_ns)} in the traced step",
            )
            for row, calls in again
        ),
        file=row.file,
        line=row.line,
        function=row.function,
        cost_ns=cost_ns,
        saving_low_ns=round((1 - _ERROR) * cost_ns),
        saving_high_ns=min(whole.wall_ns, round((1 + _ERROR) * cost_ns)),
    )


def _cost(row: TracedLine, calls: ModuleCalls, measured: Measured, whole: Whole) -> int:
    """These calls' part of their phase, and of the backward if one came after them."""
    phase = phase_part(measured, row.phase, whole)
    in_phase = traced_ns(measured, row.phase)
    if phase is None or not in_phase:
        return 0
    share = min(1.0, calls.again_ns / in_phase)
    cost = phase.ns * share
    backward = phase_part(measured, "backward", whole)
    if calls.again_backward and backward is not None:
        cost += backward.ns * share
    return round(cost)
