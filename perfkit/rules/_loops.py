"""The loops of the user's in the step that was traced by line: around a line, and what the ops in one take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from perfkit._location import Location
from perfkit.ledger.ledger import NEAR_LIMIT, Ledger
from perfkit.ledger.rows import LedgerRow
from perfkit.ledger.step_budget import MAJORITY
from perfkit.run.records import Lines, ModuleCalls, TracedLine

#: (file, function).
Function = tuple[str, str | None]

#: Calls and iterations belong together if they differ by a factor of at most this (chosen, as for many-small-ops).
_ABOUT = 1.5
#: Calls that are climbed from a line to the loop that leads to it (chosen: a helper or two, and a method around them).
_MAX_CALLS = 4
#: Phases whose loops are others' to report.
_NOT_LOOKED_AT = ("data", "validation", "optimizer")


def loop_of(place: Location | None, lines: Lines | None) -> Location | None:
    """The statement of the loop around a line, else the line itself."""
    return (_loop_around(place, lines) or place.at) if place is not None else None


def calling_loop(place: Location | None, lines: Lines | None) -> Location | None:
    """The statement of the loop around a line, or around the calls that lead to it; else the line itself."""
    at, traced = place, lines.traced if lines is not None else ()
    for _ in range(_MAX_CALLS):
        if (loop := _loop_around(at, lines)) is not None:
            return loop
        at = next((by for row in traced if at is not None and _is_at(row, at) for by in row.callers), None)
    return place.at if place is not None else None


def is_in_rollout(place: Location | None, lines: Lines | None) -> bool:
    """Whether a line, or a call that leads to it, is in a loop that only asks models, without gradients.

    So does the environment of an agent: what it computes is asked for by what the model answers.
    """
    traced = lines.traced if lines is not None else ()
    places = [place.at] if place is not None else []
    for _ in range(_MAX_CALLS):
        rows = [row for row in traced if any(_is_at(row, at) for at in places)]
        for row in rows:
            # The loop over all updates is around a rollout, too.
            loops = ([calls for one in loop for calls in one.modules] for loop in _loops_around(row, traced))
            asked = next(filter(None, loops), [])
            if asked and not any(calls.builds_graph for calls in asked):
                return True
        places = list(dict.fromkeys(by for row in rows for by in row.callers))
    return False


def _loops_around(row: TracedLine, traced: Sequence[TracedLine]) -> list[list[TracedLine]]:
    """The lines of each loop around a line, the innermost first; also of one whose lines are before and after it."""
    spans: dict[int, list[TracedLine]] = defaultdict(list)
    for one in traced:
        if (one.file, one.function) == (row.file, row.function) and one.loop_line is not None:
            spans[one.loop_line].append(one)
    return [
        inside
        for loop_line, inside in sorted(spans.items(), reverse=True)
        if loop_line == row.loop_line or loop_line < row.line <= max(one.line for one in inside)
    ]


def _loop_around(place: Location | None, lines: Lines | None) -> Location | None:
    if place is None or lines is None:
        return None
    loops = (row.loop_line for row in lines.traced if _is_at(row, place) and row.loop_line is not None)
    line = next(loops, None)
    return msgspec.structs.replace(place.at, line=line) if line is not None else None


def _is_at(row: TracedLine, place: Location) -> bool:
    return (row.file, row.line) == (place.file, place.line)


class LoopOps(NamedTuple):
    """The ops of one loop in the ledger, their backward included; times in ns per step.

    ``rounds`` is how often the loop begins anew, each time with a part of the ``iterations``.
    ``functions`` are those that only this loop calls, with the loop's own. ``slow_ns`` is the time of rows that are far
    from their limit or whose ops are small, of ``total_ns``, and ``python_ns`` what of that is outside of ops;
    ``limit_ns`` is what these rows take at their limit where one iteration does the work of all, with the overhead of
    one. ``before_model`` is whether it runs before any module, ``recurrent`` whether it is a recurrence (see
    `_is_recurrence`), and ``carries`` is `TracedLine.loop_carries`. ``busiest`` is the line of its body that has most
    of ``slow_ns``; None: none has.
    """

    at: Location
    functions: frozenset[Function]
    iterations: int
    rounds: int
    ops: float
    total_ns: int
    slow_ns: int
    python_ns: int
    limit_ns: int
    before_model: bool
    recurrent: bool = False
    carries: bool = False
    busiest: Location | None = None


def ops_of_loops(lines: Lines, ledger: Ledger, small_ns: float) -> Iterator[LoopOps]:
    """What the ops take in each loop that calls no module or is a recurrence, by the rows of the ledger at its lines.

    Args:
        lines: With the step that was traced by line, which knows how often each line ran.
        ledger: Of the training thread.
        small_ns: Ops that take less on average are small: most of that is not computing.
    """
    loops: dict[tuple[str, str, int], list[TracedLine]] = defaultdict(list)
    for row in lines.traced:
        if row.owner == "user" and row.loop_line is not None and row.phase not in _NOT_LOOKED_AT:
            loops[row.file, row.function, row.loop_line].append(row)
    # Their loop steps one optimizer, and each iteration begins where the one before ended.
    closures = {(one.file, one.line) for one in lines.repeated_closures}
    for (file, function, line), own in loops.items():
        rows = [*own, *_nested(own, loops, ledger)]
        body = {(file, row.line) for row in rows if row.line != line}
        if body & closures:
            continue
        called = only_called_from(body, lines)
        below = [row for row in lines.traced if (row.file, row.function) in called]
        here = [row for row in ledger.rows if _is_in(row, body, called)]
        # A call in a comprehension is one run of its line, and several of the function that it calls.
        iterations, rounds = _runs(own)
        calls = [one for row in (*rows, *below) for one in row.modules]
        recurrent = bool(calls) and function.endswith("forward") and _is_recurrence(calls, iterations, here)
        if calls and not recurrent:
            continue
        slow = [row for row in here if _is_slow(row, small_ns)]
        at = Location(file=file, line=line, function=function, owner="user")
        yield LoopOps(
            at=at,
            functions=frozenset({(file, function), *called}),
            iterations=iterations,
            rounds=rounds,
            ops=sum(row.count or 0.0 for row in here if row.owner == "op overhead"),
            total_ns=sum(row.ns for row in here),
            slow_ns=sum(row.ns for row in slow),
            python_ns=sum(row.ns for row in slow if row.owner == "python"),
            limit_ns=sum(_limit_at_once(row, rounds / max(1, iterations)) for row in slow),
            before_model=all(row.before_model for row in own),
            recurrent=recurrent,
            carries=any(row.loop_carries for row in own),
            busiest=busiest_of(_times(slow), at, {(row.file, row.line) for row in own}),
        )


def busiest_of(
    times: Mapping[Location, int], loop: Location, body: Collection[tuple[str, int | None]]
) -> Location | None:
    """The line of a loop's body, other than its statement, that has most of these times; None where none has."""
    of_line: Counter[tuple[str, int | None]] = Counter()
    for at, ns in times.items():
        of_line[at.file, at.line] += ns
    for (file, line), ns in of_line.most_common(1):
        if (file, line) in body and line != loop.line and ns > MAJORITY * of_line.total():
            return msgspec.structs.replace(loop, line=line)
    return None


def _times(rows: Sequence[LedgerRow]) -> Counter[Location]:
    times: Counter[Location] = Counter()
    for row in rows:
        if row.at is not None:
            times[row.at] += row.ns
    return times


def _runs(loop: Sequence[TracedLine]) -> tuple[int, int]:
    """(iterations of a loop, how often it begins): its statement runs once more than its body, each time.

    Of a loop that is always left by ``break`` only the first begin is known.
    """
    runs: Counter[int] = Counter()
    for row in loop:
        runs[row.line] += row.runs
    of_statement = runs.pop(loop[0].loop_line or 0, 0)
    iterations = max(runs.values(), default=0)
    return iterations, max(1, of_statement - iterations)


def _nested(
    loop: Sequence[TracedLine], loops: Mapping[tuple[str, str, int], Sequence[TracedLine]], ledger: Ledger
) -> list[TracedLine]:
    """The lines of loops that each iteration of ``loop`` begins, of which none has most of its time."""
    first = loop[0]
    here = {
        line: rows for (file, function, line), rows in loops.items() if (file, function) == (first.file, first.function)
    }
    iterations = {line: _runs(rows)[0] for line, rows in here.items()}

    def around(line: int) -> int | None:
        """The nearest loop before it that goes round as often as it begins."""
        begins = _runs(here[line])[1]
        return max((other for other in here if other < line and iterations[other] == begins), default=None)

    nested = [rows for line, rows in here.items() if around(line) == first.loop_line]
    times = [_ns_at(rows, ledger) for rows in nested]
    if max(times, default=0) > MAJORITY * (sum(times) + _ns_at(loop, ledger)):
        return []
    return [row for rows in nested for row in rows]


def _ns_at(rows: Sequence[TracedLine], ledger: Ledger) -> int:
    places = {(row.file, row.line) for row in rows}
    return sum(row.ns for row in ledger.rows if row.at is not None and (row.at.file, row.at.line) in places)


def _is_recurrence(calls: Sequence[ModuleCalls], iterations: int, rows: Sequence[LedgerRow]) -> bool:
    """Whether a loop of a model's forward that trains calls the same layers in each iteration, one time step each.

    A loop over layers or over samples does not; a recurrence may have a layer of its input, too, whose slices it gets.
    With attention in it no layer of torch does the same in one call.
    """
    of_state = sum(one.host_ns for one in calls if not one.sliced and one.items is None)
    return (
        all(one.calls * _ABOUT >= iterations for one in calls)
        and of_state > MAJORITY * sum(one.host_ns for one in calls)
        and any(row.phase == "backward" for row in rows)
        and not any("softmax" in row.name or "attention" in row.name for row in rows)
    )


def only_called_from(body: set[tuple[str, int]], lines: Lines) -> set[Function]:
    """The user's functions all of whose callers in the step are these lines, or functions of this kind."""
    found: set[Function] = set()
    while True:
        more = {
            (row.file, row.function)
            for row in lines.traced
            if row.callers and all((by.file, by.line) in body or (by.file, by.function) in found for by in row.callers)
        }
        if more <= found:
            return found
        found |= more


def _is_in(row: LedgerRow, body: set[tuple[str, int]], called: set[Function]) -> bool:
    at = row.at
    if at is None or row.owner not in ("computing", "op overhead", "python"):
        return False
    return (at.file, at.line or 0) in body or (at.file, at.function) in called


def _limit_at_once(row: LedgerRow, share: float) -> int:
    return round((row.limit_ns or 0) * (share if row.bound == "overhead" else 1.0))


def _is_slow(row: LedgerRow, small_ns: float) -> bool:
    """Whether one op in place of many would take less than the row: what is near its limit would not."""
    if row.owner != "computing":
        return True
    if row.limit_ns is not None:
        return row.limit_ns < NEAR_LIMIT * row.ns
    return bool(row.count) and row.ns < small_ns * (row.count or 0.0)
