"""What calls of modules cost, from the step that was traced by line."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.ledger.step_budget import StepBudget
from perfkit.run.records import Lines, TracedLine

#: Tracing a step by line slows plain Python up to so many times: an event takes 0.5 µs, a short line 0.05 µs.
_SLOWDOWN = 10


def cost_of_calls(ns: int, row: TracedLine, lines: Lines, step: StepBudget, *, backward: bool) -> float:
    """Time of calls from one line of the traced step, as a part of the step.

    By its share of its phase, because tracing slows the step; with ``backward`` also that share of the backward.
    """
    after = step.phase("backward") if backward else None
    after_ns = after.ns if after is not None else 0
    phase, forward = step.phase(row.phase), step.phase("forward")
    traced = _outermost_ns([one for one in lines.traced if one.phase == row.phase])
    if row.phase == "other" and forward is not None and (phase.ns if phase is not None else 0) * _SLOWDOWN < traced:
        # That a line led to a backward may be known when its step is over only: the line does not belong to this phase.
        later = {(one.file, one.line) for one in lines.rows if one.phase in ("backward", "optimizer")}
        ended = [one for one in lines.traced if (one.file, one.line) in later]
        phase, traced = forward, _outermost_ns(lines.traced) - _outermost_ns(ended)
    if phase is None or traced <= 0:
        return 0.0
    return min(1.0, ns / traced) * (phase.ns + after_ns)


def _outermost_ns(rows: Sequence[TracedLine]) -> int:
    """Time of these lines in the traced step: of those that no other one of them called."""
    known = {(one.file, one.line) for one in rows}
    return sum(one.host_ns for one in rows if not any((caller.file, caller.line) in known for caller in one.callers))
