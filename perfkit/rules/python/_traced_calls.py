"""What calls of modules cost, from the step that was traced by line."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.ledger.step_budget import StepBudget
from perfkit.run.records import Lines, Phase, TracedLine

#: Tracing a step by line slows plain Python up to so many times: an event takes 0.5 µs, a short line 0.05 µs.
_SLOWDOWN = 10


def cost_of_calls(ns: int, row: TracedLine, lines: Lines, step: StepBudget, *, backward: bool) -> float:
    """Time of calls from one line of the traced step, as a part of the step.

    By its share of its phase, because tracing slows the step; with ``backward`` also that share of the backward.
    """
    phase_ns = _phase_ns(step, row.phase)
    traced = outermost_ns([one for one in lines.traced if one.phase == row.phase])
    forward_is_known = any(one.phase == "forward" for one in lines.traced)
    if row.phase == "other" and (not forward_is_known or phase_ns * _SLOWDOWN < traced):
        # That a line led to a backward may be known when its step is over only: what is other then is also the forward.
        later = {(one.file, one.line) for one in lines.rows if one.phase in ("backward", "optimizer")}
        ended = [one for one in lines.traced if (one.file, one.line) in later]
        phase_ns += _phase_ns(step, "forward")
        traced = outermost_ns(lines.traced) - outermost_ns(ended)
    if traced <= 0:
        return 0.0
    return min(1.0, ns / traced) * (phase_ns + (_phase_ns(step, "backward") if backward else 0))


def _phase_ns(step: StepBudget, phase: Phase) -> int:
    found = step.phase(phase)
    return found.ns if found is not None else 0


def outermost_ns(rows: Sequence[TracedLine]) -> int:
    """Time of these lines in the traced step: of those that no other one of them called."""
    known = {(one.file, one.line) for one in rows}
    return sum(one.host_ns for one in rows if not any((caller.file, caller.line) in known for caller in one.callers))
