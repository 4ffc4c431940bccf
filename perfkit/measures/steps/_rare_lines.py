"""The line in which the time of rare steps passes: sampled lines that an ordinary step does not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.measures.host.callers import Function, sampled_callers
from perfkit.run.records import LineRow, Lines, Phase

#: Samples must explain this share of the group's time. With 20 of them the error is a fifth, and on a busy machine up
#: to two thirds come too late to show a line that waits (measured at a load of 7 on two cores).
_EXPLAINS = 0.25
#: Callers that are climbed: a loop has few of its own functions above a line.
_DEEP = 50


def line_of(lines: Lines | None, phase: Phase | None, total_ns: int) -> tuple[Location | None, Location | None]:
    """The training function's line below which ``total_ns`` passes in this phase, and the hottest line below that.

    Lines that ran in the step traced by line are an ordinary step's; of those that both run (a model's forward), the
    line that calls them most often counts. Without such a step, and where rare steps run the same lines as all others,
    a line must have samples for much of that time by itself.
    """
    if lines is None or phase is None or not lines.rows:
        return None, None
    ordinary = _OrdinaryStep(lines)
    sampled = [row for row in lines.in_phase(phase) if row.owner == USER]
    # A function that ordinary steps call as well (the model's forward) has the caller that they have not.
    in_phase = sorted((one for row in sampled for one in row.by_caller()), key=lambda one: -one.samples)
    rare = [row for row in in_phase if ordinary.rare_part(row)] if lines.traced else []
    enough = _EXPLAINS * total_ns / max(1, lines.period_ns)
    if sum(row.samples for row in rare) < enough:
        rare = [row for row in in_phase if row.samples >= enough]
    below: dict[Location, int] = defaultdict(int)
    hottest: dict[Location, Location] = {}
    for row in rare:  # hottest first
        part = ordinary.rare_part(row) or ordinary.up_to_training(row)
        below[part[-1]] += row.samples
        hottest.setdefault(part[-1], part[0])
    if not below:
        return None, None
    at = max(below, key=lambda one: below[one])
    return at, hottest[at] if hottest[at] != at else None


class _OrdinaryStep:
    """What ordinary steps run: the lines of the step traced by line, and the functions of those."""

    def __init__(self, lines: Lines) -> None:
        rows = [row for row in lines.rows if row.worker is None]
        self._lines = {(line.file, line.line) for line in lines.traced}
        self._training: set[Function] = {
            (row.file, row.function) for row in rows if row.phase in ("backward", "optimizer")
        }
        self._callers = sampled_callers(lines)
        self._functions: set[Function] = self._training | {(line.file, line.function) for line in lines.traced}
        #: A training step that is a function of its own runs below the loop around it.
        self._around: set[Function] = {outer for name in self._training for outer in self._outside(name)}
        self._functions |= self._around

    def _outside(self, name: Function) -> Iterator[Function]:
        """The functions from which this one was reached, without the module's code."""
        for _ in range(_DEEP):
            caller = self._callers.get(name)
            if caller is None or caller.function in (None, "<module>"):
                return
            name = caller.file, caller.function
            yield name

    def rare_part(self, row: LineRow) -> list[Location]:
        """A sampled line and its callers, from the first that ordinary steps do not run to one in a function of theirs.

        Empty where they run the line, and no line below such a function that calls it most often.
        """
        found: list[Location] = []
        below: Function | None = None
        for at in self._chain(row):
            if not found and below in self._training | self._around:
                return []  # a line that calls the loop
            below = at.file, at.function
            if (at.file, at.line) not in self._lines:
                found.append(at)
                if (at.file, at.function) in self._functions:
                    return found
            elif found:
                return found
        # What calls the loop does not belong to a step.
        return [] if (row.file, row.line) in self._lines else found[:1]

    def up_to_training(self, row: LineRow) -> list[Location]:
        """A sampled line, and the line from which it was reached: in the function that trains, else the outermost."""
        chain = [at for at in self._chain(row) if at.function != "<module>"]
        training = (at for at in chain if (at.file, at.function) in self._training)
        return list(dict.fromkeys((row.at, next(training, chain[-1] if chain else row.at))))

    def _chain(self, row: LineRow) -> Iterator[Location]:
        at: Location | None = row.at
        caller = row.called_from
        for _ in range(_DEEP):
            if at is None:
                return
            yield at.at
            at, caller = caller, self._callers.get((caller.file, caller.function)) if caller is not None else None
