"""What a rare step does below one line, from the one that was traced by line: calls of models, or a line of its own."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from perfkit._format import shown_location
from perfkit._location import Location
from perfkit.findings import Evidence
from perfkit.ledger.step_budget import MAJORITY
from perfkit.rules._loops import calling_loop
from perfkit.rules.python._traced_calls import outermost_ns
from perfkit.run.records import Lines, ModuleCalls, TracedLine

#: As many calls with one sample each are a loop, as for loop-over-samples.
_MIN_CALLS = 8
#: Calls that are followed from a line (chosen: more than the helpers of any program that was seen).
_DEEP = 20
#: Kinds of work that a step need not do.
NOT_NEEDED = ("repeated", "samples")

Place = tuple[str, int | None]


class RareWork(NamedTuple):
    """Most of a rare step: calls of ``module``, or one line.

    Attributes:
        kind: "repeated" are calls with an input that the module had before, "samples" those with the samples of a
            collection one by one, "single" others with one sample each: whether one needs the answer of another is not
            known. "calls" are all others, and "line" is a line that calls no model.
        at: The line to edit: that of the loop for samples, and for repeated calls the one that repeats them.
        calls: Of the module; 0 for a line. With ``and_more`` the step was not traced to its end.
        share: The part (0 to 1) of the rare step's time that this is.
    """

    kind: Literal["repeated", "samples", "single", "calls", "line"]
    at: Location
    share: float
    module: str = ""
    calls: int = 0
    and_more: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether the step may need it, as far as its calls show."""
        return self.kind not in NOT_NEEDED

    @property
    def sentence(self) -> str:
        """How a model is called; empty where nothing is wrong with that."""
        how = {
            "repeated": "many of them with an input that it had before",
            "samples": "one sample at a time",
            "single": "with one sample each",
        }.get(self.kind)
        count = f"{'more than ' if self.and_more else ''}{self.calls:,} times"
        return f" {self.module} is called {count} in one, {how}." if how is not None else ""

    @property
    def evidence(self) -> Evidence:
        """Its share, and where it is."""
        return Evidence(
            "most of one such step", round(100 * self.share), "%", f"{shown_location(self.at)}, traced by line"
        )

    @property
    def advice(self) -> str:
        """What to do about what is not needed."""
        if self.kind == "repeated":
            return (
                f"Call {self.module} once per input and keep its answer; where only dropout differs, compute what "
                "comes before the first dropout once."
            )
        return f"Call {self.module} once with all samples, under torch.inference_mode() where it needs no gradients."


def rare_work(place: Location | None, lines: Lines | None) -> RareWork | None:
    """What most of the time below ``place`` is; None where no rare step that ran this line was traced."""
    if lines is None or lines.rare_step is None or place is None:
        return None
    steps = _RareLines(msgspec.structs.replace(lines, traced=lines.rare_step.lines))
    total_ns = steps.ns.get((place.file, place.line), 0)
    if not total_ns:
        return None
    below = [row for row in steps.below(place) if row.phase != "validation"]
    found = steps.not_needed(below, total_ns) or steps.longest_below(place, total_ns)
    return found._replace(and_more=not lines.rare_step.complete)


def rare_validation(lines: Lines | None) -> RareWork | None:
    """What the validation in the traced step does and need not; None where there was none, or nothing of that."""
    if lines is None or lines.rare_step is None:
        return None
    rows = [row for row in lines.rare_step.lines if row.phase == "validation"]
    steps = _RareLines(msgspec.structs.replace(lines, traced=tuple(rows)))
    found = steps.not_needed(steps.outside_of_modules(), outermost_ns(rows))
    return found._replace(and_more=not lines.rare_step.complete) if found is not None else None


class _RareLines:
    """The lines of the traced step, with those that each calls."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        #: The time of each line. A comprehension has the line of its statement, and is a function of its own.
        self.ns: dict[Place, int] = {}
        self._rows: dict[Place, list[TracedLine]] = defaultdict(list)
        self._called: dict[Place, list[TracedLine]] = defaultdict(list)
        for row in lines.traced:
            at = row.file, row.line
            self._rows[at].append(row)
            self.ns[at] = max(self.ns.get(at, 0), row.host_ns)
            for by in row.callers:
                if (by.file, by.line) != at:
                    self._called[by.file, by.line].append(row)

    def below(self, place: Location) -> Iterator[TracedLine]:
        """A line, and all that it calls up to the calls of modules, the outermost first."""
        waiting, seen = [(place.file, place.line)], set[Place]()
        while waiting:
            at = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            yield from self._rows[at]
            if not any(row.modules for row in self._rows[at]):
                waiting.extend((row.file, row.line) for row in self._called[at])

    def outside_of_modules(self) -> list[TracedLine]:
        """The lines that no call of a module leads to."""
        inside: set[Place] = set()
        waiting = [
            called for at, rows in self._rows.items() if any(row.modules for row in rows) for called in self._called[at]
        ]
        while waiting:
            row = waiting.pop()
            if (row.file, row.line) not in inside:
                inside.add((row.file, row.line))
                waiting.extend(self._called[row.file, row.line])
        return [row for row in self._lines.traced if (row.file, row.line) not in inside]

    def not_needed(self, rows: Iterable[TracedLine], total_ns: int) -> RareWork | None:
        """Calls of these lines, most of ``total_ns``, whose answer was known, or that one call could make."""
        loops: dict[Location, list[ModuleCalls]] = defaultdict(list)
        for row in rows:
            for calls in row.modules:
                ns = calls.again_ns + calls.same_ns
                if ns > MAJORITY * total_ns:
                    at = calls.again_at or self._repeating_line(row, calls)
                    return RareWork("repeated", at, min(1.0, ns / total_ns), calls.module, calls.calls)
                if (calls.sliced or (calls.items or 0) >= _MIN_CALLS) and calls.calls >= _MIN_CALLS:
                    loops[calling_loop(row, self._lines) or row.at].append(calls)
        for loop, all_calls in loops.items():
            ns = self._loop_ns(loop)
            if ns > MAJORITY * total_ns:
                calls = max(all_calls, key=lambda one: one.host_ns)
                return RareWork("samples", loop, min(1.0, ns / total_ns), calls.module, calls.calls)
        return None

    def longest_below(self, place: Location, total_ns: int) -> RareWork:
        """The last of the lines below ``place`` each of which has most of the time of the one before."""
        chain = self._down_from(place)
        last = chain[-1]
        share = min(1.0, self.ns[last.file, last.line] / total_ns)
        if not last.modules:
            return RareWork("line", last.at, share)
        calls = max(last.modules, key=lambda one: one.host_ns)
        single = calls.samples == 1 and calls.calls >= _MIN_CALLS
        at = _outermost_loop(chain) if single else last.at
        return RareWork("single" if single else "calls", at, share, calls.module, calls.calls)

    def _down_from(self, place: Location) -> list[TracedLine]:
        row = self._row(place)
        chain = [row]
        for _ in range(_DEEP):
            called = self._called[row.file, row.line]
            longest = max(called, key=lambda one: one.host_ns, default=None)
            if row.modules or longest is None or longest.host_ns <= MAJORITY * self.ns[row.file, row.line]:
                break
            row = self._row(longest)
            if row in chain:
                break
            chain.append(row)
        return chain

    def _row(self, place: Location) -> TracedLine:
        """The row of a line that calls modules, else that of its statement: a comprehension in it runs more often."""
        return min(self._rows[place.file, place.line], key=lambda row: (not row.modules, row.runs))

    def _repeating_line(self, row: TracedLine, calls: ModuleCalls) -> Location:
        """The line that repeats calls: it runs as many times per run of the line that leads to it as they are repeated.

        The calls of a loop over batches that another loop repeats are each a first call once.
        """
        wanted = 1 + calls.same_most
        chain = [row, *self._up_from(row)]
        ratios = [
            (abs(math.log(max(1, one.runs) / max(1, outer.runs) / wanted)), at)
            for at, (one, outer) in enumerate(itertools.pairwise(chain))
        ]
        # What leads to the outermost line is a library, which calls it as often as it runs.
        ratios.append((abs(math.log(max(1, chain[-1].runs) / wanted)), len(chain) - 1))
        return chain[min(ratios)[1]].at

    def _up_from(self, row: TracedLine) -> Iterator[TracedLine]:
        """The lines that lead to a line, innermost first; a comprehension comes before its statement."""
        seen = [row]
        for _ in range(_DEEP):
            by = next(iter(row.callers), None)
            rows = [one for one in self._rows.get((by.file, by.line), ()) if one not in seen] if by is not None else []
            if not rows:
                return
            row = max(rows, key=lambda one: one.runs)
            seen.append(row)
            yield row

    def _loop_ns(self, loop: Location) -> int:
        """The time of all lines of a loop of the user's, or of a comprehension."""
        body = {
            row.line: self.ns[row.file, row.line]
            for row in self._lines.traced
            if (row.file, row.function, row.loop_line) == (loop.file, loop.function, loop.line)
        }
        return sum(body.values()) or self.ns.get((loop.file, loop.line), 0)


def _outermost_loop(chain: Sequence[TracedLine]) -> Location:
    """The first line of a chain whose function the line before it calls many times."""
    for before, after in itertools.pairwise(chain):
        if after.runs >= _MIN_CALLS * max(1, before.runs):
            return before.at
    return chain[-1].at
