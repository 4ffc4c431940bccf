"""Python of the user's by the step for lines, where a run was too short for samples.

That step shows how long each line took without ops. It is one step, and a slow one. So the time of a phase's lines is
limited to what the phase takes outside of ops, by the clock and the window, and the time of all lines to the processor
time of the thread outside of ops: a line that sleeps uses none. Only samples show which library a line called. A line
without samples counts if each of its runs is so short that it calls none that works for long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from perfkit._code_owner import USER
from perfkit.measures.results.host import SourceLine, SourceLines
from perfkit.measures.results.steps import MeanStep
from perfkit.measures.results.work import OpShares
from perfkit.run.records import PHASES, LineRow, Lines, Phase, Rank, TracedLine

#: A line with more than this share of its time in ops calls ops, and other rules examine it. Measured while torch's
#: stacks were recorded, which the step for lines does without: a line of small ops has 25 to 60 % of its time in them,
#: one call of a fused op over a list of parameters 13 %, a line that turns lists into a tensor less than 1 %.
CALLS_OPS = 0.05
#: The phases in which lines of the user's run that a rule on Python may be about.
_OF_LINES: frozenset[Phase] = frozenset({"forward", "other", "callbacks", "logging", "checkpoint"})
#: A line without samples counts only if its Python takes at most this many times what following it takes, about 30 µs
#: each time (chosen): calls of an optimizer, a Trainer or a file take longer.
_SHORT = 20


class FollowedLine(NamedTuple):
    """A line and its Python in the mean step; ``row`` has no samples, and the library in which most of them were."""

    row: LineRow
    within: str
    ns: float


def followed_lines(
    lines: Lines,
    source: SourceLines | None,
    every: MeanStep | None,
    shares: OpShares | None,
    rank: Rank | None,
    *,
    python_share: Callable[[LineRow], float],
    joined: Callable[[Phase], Phase],
) -> tuple[FollowedLine, ...]:
    """The user's lines that call no ops, with their time per step; () where the step for lines cannot say.

    ``python_share`` is the share of a line's own time outside of ops, 0 for one that calls ops or a backward;
    ``joined`` is the phase for which the clock and the lines agree.
    """
    if source is None or not source.complete or every is None or shares is None:
        return ()
    rows = _KnownLines(lines)
    found: list[FollowedLine] = []
    for line in source.lines:
        if line.owner != USER or line.line is None:
            continue
        if (place := rows.of(line)) is None or rows.calls_others(line):
            continue
        row, within, phases = place
        own_ns = line.self_ns - line.following_ns
        if line.op_ns > CALLS_OPS * own_ns or not python_share(row):
            continue
        # A line with other phases too calls a framework (``optimizer.step(closure)``): its Python is not its own.
        if not phases <= _OF_LINES or (within is None and line.python_ns > _SHORT * line.following_ns):
            continue
        if ns := min(line.python_ns / source.steps, rows.longest_ns(line)):
            found.append(FollowedLine(row, within or "", ns))
    outside_ns = _outside_ops(every, shares, joined)
    processor_ns = _processor_outside_ops(every, shares, rank)
    taken: dict[Phase, float] = defaultdict(float)
    for one in found:
        taken[joined(one.row.phase)] += one.ns
    scale = {phase: min(1.0, outside_ns[phase] / ns) for phase, ns in taken.items()}
    left = sum(scale[phase] * ns for phase, ns in taken.items())
    of_all = 1.0 if processor_ns is None or not left else min(1.0, processor_ns / left)
    known = (one._replace(ns=one.ns * scale[joined(one.row.phase)] * of_all) for one in found)
    return tuple(one for one in known if one.ns)


class _KnownLines:
    """What is known of lines besides their time: the phase, by the step that was traced by line, and libraries."""

    def __init__(self, lines: Lines) -> None:
        self._sampled: dict[tuple[str, int], list[LineRow]] = defaultdict(list)
        for row in lines.rows:
            if row.worker is None:
                self._sampled[row.file, row.line].append(row)
        self._traced: dict[tuple[str, int], list[TracedLine]] = defaultdict(list)
        for traced in lines.traced:
            self._traced[traced.file, traced.line].append(traced)

    def longest_ns(self, line: SourceLine) -> float:
        """What the line took, with all that it called, in the step that was traced by line; infinite if not known.

        In one step of two, another program may have had the core.
        """
        traced = self._traced.get((line.file, line.line or 0), [])
        return sum(row.host_ns for row in traced) if any(row.runs for row in traced) else math.inf

    def calls_others(self, line: SourceLine) -> bool:
        """Whether its Python is mostly not the user's: it calls modules, or begins the next step with a fetch."""
        traced = self._traced.get((line.file, line.line or 0), [])
        return any(row.modules or (row.runs <= 1 and self._is_statement_of_loop(row)) for row in traced)

    def _is_statement_of_loop(self, row: TracedLine) -> bool:
        """Whether other lines are the body of a loop that begins here; a comprehension is one line."""
        at = (row.file, row.function, row.line)
        bodies = (one for rows in self._traced.values() for one in rows if one.line != row.line)
        return row.loop_line == row.line and any((one.file, one.function, one.loop_line) == at for one in bodies)

    def of(self, line: SourceLine) -> tuple[LineRow, str | None, set[Phase]] | None:
        """The line as a row, the libraries in which most of its samples are (None without samples), and its phases.

        None for a line whose phase is not known: it was neither sampled nor traced.
        """
        place = line.file, line.line or 0
        sampled, traced = self._sampled.get(place, []), self._traced.get(place, [])
        if not sampled and not traced:
            return None
        longest = max(traced, key=lambda one: one.host_ns, default=None)
        most = max(sampled, key=lambda one: one.samples, default=None)
        within: dict[str, int] = defaultdict(int)
        for row in sampled:
            for name, count in row.within.items():
                within[name] += count
        called_from = most.called_from if most is not None else None
        if called_from is None and longest is not None:
            called_from = next(iter(longest.callers), None)
        row = LineRow(
            file=line.file,
            line=place[1],
            function=line.function,
            owner=line.owner,
            phase=longest.phase if longest is not None else most.phase if most is not None else "other",
            samples=0,
            host_ns=0,
            called_from=called_from,
        )
        phases = {row.phase, *(one.phase for one in sampled), *(one.phase for one in traced)}
        return row, max(within, key=lambda name: within[name], default=None), phases


def _in_ops(every: MeanStep, shares: OpShares) -> Iterator[tuple[Phase, int, float]]:
    """Each phase of the mean step, its length and its part in ops, in ns."""
    for phase in PHASES:
        ns = getattr(every.phases_ns, phase) or 0
        ops_ns = max(shares.at_speed_of(phase, every.phases_ns.backward), ns * shares.shares.get(phase, 0.0))
        yield phase, ns, min(ns, ops_ns)


def _outside_ops(every: MeanStep, shares: OpShares, joined: Callable[[Phase], Phase]) -> Mapping[Phase, float]:
    left: dict[Phase, float] = defaultdict(float)
    for phase, ns, ops_ns in _in_ops(every, shares):
        if phase in _OF_LINES:
            left[joined(phase)] += ns - ops_ns
    return left


def _processor_outside_ops(every: MeanStep, shares: OpShares, rank: Rank | None) -> float | None:
    """What the thread ran on a processor outside of ops, per step; None where it is not known.

    Where other programs had the core for a part of the time, ops were without it for as large a part.
    """
    if rank is None or rank.thread_ns_per_step is None:
        return None
    running = 1 - (rank.core_wait_share or 0.0)
    return max(0.0, rank.thread_ns_per_step - running * sum(ops_ns for _, _, ops_ns in _in_ops(every, shares)))
