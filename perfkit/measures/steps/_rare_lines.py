"""The line in which the time of rare steps passes: sampled lines that an ordinary step does not run."""

from __future__ import annotations

from collections import defaultdict

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.run.records import LineRow, Lines, Phase

#: Samples must explain this share of the group's time: with 20 of them the error is a fifth.
_EXPLAINS = 0.4


def line_of(lines: Lines | None, phase: Phase | None, total_ns: int) -> tuple[Location | None, Location | None]:
    """The training function's line below which ``total_ns`` passes in this phase, and the hottest line itself.

    Lines that ran in the step traced by line are an ordinary step's. Without such a step, and where rare steps run the
    same lines as all others, a line must have samples for much of that time by itself.
    """
    if lines is None or phase is None or not lines.rows:
        return None, None
    ran = {(line.file, line.line) for line in lines.traced}
    in_phase = [row for row in lines.in_phase(phase) if row.owner == USER]
    rare = [row for row in in_phase if (row.file, row.line) not in ran] if ran else []
    enough = _EXPLAINS * total_ns / max(1, lines.period_ns)
    if sum(row.samples for row in rare) < enough:
        rare = [row for row in in_phase if row.samples >= enough]
    if not rare:
        return None, None
    below: dict[Location, int] = defaultdict(int)
    hottest: dict[Location, LineRow] = {}
    callers = _Callers(lines)
    for row in rare:
        at = callers.training_line(row)
        below[at] += row.samples
        if at not in hottest or row.samples > hottest[at].samples:
            hottest[at] = row
    at = max(below, key=lambda one: below[one])
    called = hottest[at].at
    return at, called if called != at else None


class _Callers:
    """From where a sampled line was reached, up to a function that ordinary steps run."""

    def __init__(self, lines: Lines) -> None:
        rows = [row for row in lines.rows if row.worker is None]
        self._ordinary = {(row.file, row.function) for row in rows if row.phase in ("backward", "optimizer")}
        self._ordinary |= {(line.file, line.function) for line in lines.traced}
        self._callers = {(row.file, row.function): row.called_from for row in reversed(rows)}

    def training_line(self, row: LineRow) -> Location:
        """The line in such a function; where none is above, the outermost line that is known."""
        at, caller = row.at, row.called_from
        seen: set[Location] = set()
        while caller is not None and caller not in seen and (at.file, at.function) not in self._ordinary:
            seen.add(caller)
            at, caller = caller.at, self._callers.get((caller.file, caller.function or ""))
        return at
