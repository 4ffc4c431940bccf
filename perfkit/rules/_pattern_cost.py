"""What patterns of ops cost as part of the whole, and where they stand: for rules that read `Measured.patterns`."""

from __future__ import annotations

from typing import TypedDict

from perfkit._location import Location
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.patterns import Patterns
from perfkit.rules._step_budget import Whole


class Where(TypedDict):
    """The fields of a finding that name a line."""

    file: str | None
    line: int | None
    function: str | None


def op_part(ns: float, patterns: Patterns, whole: Whole) -> int:
    """A time of `Patterns` as part of the whole, no more than it.

    On a host by its share of the step that was measured in the same way: recording makes that step slower, and other
    programs make every step slower, but hardly its shares. Kernels take as long as they do without a recording.
    """
    if patterns.step_ns is not None:
        return round(whole.wall_ns * min(1.0, ns / max(1, patterns.step_ns)))
    return min(round(ns), whole.wall_ns)


def where(place: Location | None, measured: Measured, *, loop: bool = False) -> Where:
    """The line of a place; with ``loop`` the loop that it stands in, where the step traced by line tells one."""
    if place is None:
        return Where(file=None, line=None, function=None)
    line = place.line
    if loop and measured.lines is not None:
        found = [
            row.loop_line
            for row in measured.lines.traced
            if row.file == place.file and row.line == line and row.loop_line is not None
        ]
        line = found[0] if found else line
    return Where(file=place.file, line=line, function=place.function)
