"""What calls of modules cost, from the step that was traced by line."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.ledger.step_budget import StepBudget
from perfkit.run.records import Lines, Phase, TracedLine

_Place = tuple[str, int | None]
#: Tracing a step by line slows plain Python up to so many times: an event takes 0.5 µs, a short line 0.05 µs.
_SLOWDOWN = 10


def cost_of_calls(ns: int, row: TracedLine, lines: Lines, step: StepBudget, *, backward: bool) -> float:
    """Time of calls from one line of the traced step, as a part of the step.

    By its share of its phase, because tracing slows the step; with ``backward`` also that share of the backward.
    """
    phase_ns = _phase_ns(step, row.phase)
    # A line that starts a backward began in the phase before it; that of a Trainer does so too, and calls the model.
    later = {(one.file, one.line) for one in lines.rows if one.phase in ("backward", "optimizer")}
    later -= _leading_to_modules(lines.traced)
    ended = [one for one in lines.traced if (one.file, one.line) in later and row.phase in ("forward", "other")]
    traced = _outermost_ns_without(ended, [one for one in lines.traced if one.phase == row.phase])
    forward_is_known = any(one.phase == "forward" for one in lines.traced)
    if row.phase == "other" and (not forward_is_known or phase_ns * _SLOWDOWN < traced):
        # That a line led to a backward may be known when its step is over only: what is other then is also the forward.
        phase_ns += _phase_ns(step, "forward")
        traced = _outermost_ns_without(ended, lines.traced)
    if traced <= 0:
        return 0.0
    return min(1.0, ns / traced) * (phase_ns + (_phase_ns(step, "backward") if backward else 0))


def _phase_ns(step: StepBudget, phase: Phase) -> int:
    found = step.phase(phase)
    return found.ns if found is not None else 0


def _outermost_ns_without(ended: Sequence[TracedLine], rows: Sequence[TracedLine]) -> int:
    """`outermost_ns` without those of these lines that a backward or an optimizer's step is in."""
    known = set(map(id, rows))
    return outermost_ns(rows) - outermost_ns([one for one in ended if id(one) in known])


def _leading_to_modules(rows: Sequence[TracedLine]) -> set[_Place]:
    """The lines that call modules, and those that lead to them."""
    callers: dict[_Place, set[_Place]] = {
        (row.file, row.line): {(by.file, by.line) for by in row.callers} for row in rows
    }
    todo: list[_Place] = [(row.file, row.line) for row in rows if row.modules]
    found: set[_Place] = set()
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo.extend(callers.get(at, ()))
    return found


def outermost_ns(rows: Sequence[TracedLine]) -> int:
    """Time of these lines in the traced step: of those that no other one of them called."""
    known = {(one.file, one.line) for one in rows}
    return sum(one.host_ns for one in rows if not any((caller.file, caller.line) in known for caller in one.callers))
