"""What calls of modules cost, from the step that was traced by line."""

from __future__ import annotations

from perfkit.ledger.step_budget import StepBudget
from perfkit.run.records import Lines, TracedLine


def cost_of_calls(ns: int, row: TracedLine, lines: Lines, step: StepBudget, *, backward: bool) -> float:
    """Time of calls from one line of the traced step, as a part of the step.

    By its share of its phase, because tracing slows the step; with ``backward`` also that share of the backward.
    """
    phase, traced = step.phase(row.phase), _traced_ns(lines, row)
    if phase is None or not traced:
        return 0.0
    after = step.phase("backward") if backward else None
    return min(1.0, ns / traced) * (phase.ns + (after.ns if after is not None else 0))


def _traced_ns(lines: Lines, row: TracedLine) -> int:
    """Time of a line's phase in the traced step: of the lines that no other line of the phase called."""
    rows = [one for one in lines.traced if one.phase == row.phase]
    known = {(one.file, one.line) for one in rows}
    return sum(one.host_ns for one in rows if not any((caller.file, caller.line) in known for caller in one.callers))
