"""The user's lines of a traced step as they call each other: what is below a line, and what leads to it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

from perfkit._location import Location
from perfkit.ledger.step_budget import MAJORITY
from perfkit.run.records import Lines, TracedLine

#: Calls that are followed from a line (chosen: more than the helpers of any program that was seen).
_DEEP = 20

Place = tuple[str, int | None]


class CalledLines:
    """The lines of the traced step, with those that each calls."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        #: The time of each line. A comprehension has the line of its statement, and is a function of its own.
        self.ns: dict[Place, int] = {}
        self.rows_at: dict[Place, list[TracedLine]] = defaultdict(list)
        self._called: dict[Place, list[TracedLine]] = defaultdict(list)
        for row in lines.traced:
            at = row.file, row.line
            self.rows_at[at].append(row)
            self.ns[at] = max(self.ns.get(at, 0), row.host_ns)
            for by in row.callers:
                if (by.file, by.line) != at:
                    self._called[by.file, by.line].append(row)

    def loop_ns(self, loop: Location) -> int:
        """The time of all lines of a loop of the user's, or of a comprehension."""
        body = {
            row.line: self.ns[row.file, row.line]
            for row in self.lines.traced
            if (row.file, row.function, row.loop_line) == (loop.file, loop.function, loop.line)
        }
        return sum(body.values()) or self.ns.get((loop.file, loop.line), 0)

    def below(self, place: Location) -> Iterator[TracedLine]:
        """A line, and all that it calls up to the calls of modules, the outermost first."""
        waiting, seen = [(place.file, place.line)], set[Place]()
        while waiting:
            at = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            yield from self.rows_at[at]
            if not any(row.modules for row in self.rows_at[at]):
                waiting.extend((row.file, row.line) for row in self._called[at])

    def outside_of_modules(self) -> list[TracedLine]:
        """The lines that no call of a module leads to."""
        inside: set[Place] = set()
        waiting = [
            called
            for at, rows in self.rows_at.items()
            if any(row.modules for row in rows)
            for called in self._called[at]
        ]
        while waiting:
            row = waiting.pop()
            if (row.file, row.line) not in inside:
                inside.add((row.file, row.line))
                waiting.extend(self._called[row.file, row.line])
        return [row for row in self.lines.traced if (row.file, row.line) not in inside]

    def down_from(self, place: Location) -> list[TracedLine]:
        """A line, and below it one line after the other that has most of the time of the one before."""
        row = self.row(place)
        chain = [row]
        for _ in range(_DEEP):
            called = self._called[row.file, row.line]
            longest = max(called, key=lambda one: one.host_ns, default=None)
            if row.modules or longest is None or longest.host_ns <= MAJORITY * self.ns[row.file, row.line]:
                break
            row = self.row(longest)
            if row in chain:
                break
            chain.append(row)
        return chain

    def row(self, place: Location) -> TracedLine:
        """The row of a line that calls modules, else that of its statement: a comprehension in it runs more often."""
        return min(self.rows_at[place.file, place.line], key=lambda row: (not row.modules, row.runs))

    def repeating_line(self, row: TracedLine, times: int) -> Location:
        """The line that repeats what this one does ``times`` times: so often it runs per run of the line around it.

        Where a function is called from several lines, as often as that is what they repeat, it is the last of them.
        """
        chain = [row, *self.up_from(row)]
        ratios = [
            (abs(math.log(max(1, one.runs) / max(1, outer.runs) / times)), at)
            for at, (one, outer) in enumerate(itertools.pairwise(chain))
        ]
        # What leads to the outermost line is a library, which calls it as often as it runs.
        ratios.append((abs(math.log(max(1, chain[-1].runs) / times)), len(chain) - 1))
        found = chain[min(ratios)[1]]
        return found.callers[-1].at if len(found.callers) > 1 else found.at

    def up_from(self, row: TracedLine) -> Iterator[TracedLine]:
        """The lines that lead to a line, innermost first; a comprehension comes before its statement."""
        seen = [row]
        for _ in range(_DEEP):
            by = next(iter(row.callers), None)
            rows = (
                [one for one in self.rows_at.get((by.file, by.line), ()) if one not in seen] if by is not None else []
            )
            if not rows:
                return
            row = max(rows, key=lambda one: one.runs)
            seen.append(row)
            yield row
