"""A step computes again what it computed before in the same step.

Problem: a function is called several times with equal values: what two losses share is computed for each of them, or a
part that does not change in a loop is inside of it. Ops run, forward and backward, whose results were there.

How it shows: in one step, in which ops are listened to, the same op returns the same elements again (64 of them are
compared), below one line. The share of the step that these ops and their backward take is 10% or more.

Causes: features, distances, a covariance or a mask that each of several functions computes for itself; a call in a loop
whose arguments do not change; a value for the report that the loss has already.

Fix: compute it once and pass it on.

    chol = self.factor()                                   # once, and not in the loop
    terms = [self.output_nll(k, chol) for k in outputs]

    distances = torch.cdist(a, b)                          # once, for both losses
    loss = chamfer(distances) + density(distances)

Saving: the share of the ops' time that is repeated, of the forward and of the backward where they build a graph, with
an error of a quarter.

Source: one step whose ops are listened to, on a CPU. 10% and a quarter were chosen: equal results of small ops are
often meant. Calls of a module with an input that it had are unexpected-call-count's, what is the same in every step
repeated-work's.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import WARNING, StepBudget
from perfkit.rules._called_lines import CalledLines
from perfkit.rules.python._parametrized import parametrized_module, weight_advice
from perfkit.run.records import Lines, Phase, RepeatedOps

ID = "repeated-in-step"
CLAIMS = (*COMPUTING, *PYTHON)
#: Modules that are called again are known by their calls, and so are closures, where a step has several of L-BFGS.
FOLLOWS = ("unexpected-call-count", "repeated-closure")
FOLLOWS_IN_FUNCTION = ("repeated-work",)
FOLLOWS_AT_LINE = ("rebuilt-buffer", "growing-step")

#: The error of shares that come from one step: chosen.
_ERROR = 0.25
#: Phases whose ops are not looked at.
_OTHERS: tuple[Phase, ...] = ("backward", "optimizer", "data", "validation", "checkpoint")


def check(step: StepBudget, lines: Lines) -> Iterator[Finding]:
    """Find ops whose results were there, and the line that leads to them."""
    for one in lines.repeated_ops:
        share = one.host_ns / max(1, one.of_ns)
        phases = {name: part.ns if (part := step.phase(name)) is not None else 0 for name in _OTHERS}
        cost = share * (step.wall_ns - sum(phases.values()) + one.builds_graph * phases["backward"])
        if cost < WARNING * step.wall_ns:
            continue
        at = _repeated_by(one, lines)
        module = parametrized_module(lines, one.at, one.busiest)
        yield step.finding(
            cost=cost,
            saving=((1 - _ERROR) * cost, min(step.wall_ns, (1 + _ERROR) * cost)),
            spent=one.busiest,
            change=at,
            message=(
                f"{one.ops:,} ops below line {at.line} compute again what was computed before in the same step: "
                f"{step.shown(cost)}{', their backward included' if one.builds_graph else ''}."
            ),
            advice=(
                "Compute it once in a step, keep it, and go on from there."
                if module is None
                else weight_advice(module, is_trained=one.builds_graph)
            ),
            confidence="medium",
            evidence=(
                Evidence("ops with a result that was there", one.ops, "per step", "a step whose ops are listened to"),
                Evidence("of the time of all ops", percent(share, 1), "", "without backward and optimizer"),
            ),
        )


def _repeated_by(one: RepeatedOps, lines: Lines) -> Location:
    """The line that repeats them, by how often lines run in the step traced by line; else the one that leads to all."""
    called = CalledLines(lines)
    rows = called.rows_at.get((one.busiest.file, one.busiest.line), [])
    return called.repeating_line(max(rows, key=lambda row: row.runs), one.most) if rows else one.at
