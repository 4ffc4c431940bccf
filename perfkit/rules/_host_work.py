"""What the rules over the host's work in a step share: its amount, and the line that a person would change."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.host import HostKind, HostLine, HostWork
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import Whole, severity_of, whole_of, with_beyond
from perfkit.run.records import Phase

#: Fewer samples say less than "between nothing and twice that": the error of a count of ten is a third.
LEAST_SAMPLES = 10
#: The error of a count of a hundred is a tenth: as sure as a timed phase.
_SURE_SAMPLES = 100
#: What goes at least of work that is done less often: a quarter as often is little asked of what was put into every
#: step, or every few.
LESS_OFTEN = 0.75
#: A line with three quarters of its function's work is where it is done; less is spread over the function.
_MOST = 0.75


def work_of(measured: Measured, kind: HostKind) -> HostWork | None:
    """The host work of one kind, None where it was sampled too seldom to have an amount."""
    return next((work for work in measured.host if work.kind == kind and work.samples >= LEAST_SAMPLES), None)


def mean_step(measured: Measured) -> Whole | None:
    """The mean of all steps, for what happens in a few of them only: the typical step leaves those out."""
    every = measured.every_step
    if every is not None and every.wall_ns > 0:
        return Whole(every.wall_ns, "step", f"{every.source}, all of them")
    return whole_of(measured)


def beyond_few_steps(measured: Measured, ns: int) -> int:
    """What of a mean time does not come from a few long steps, as at an epoch's end: the typical one is without."""
    if measured.step is None or measured.every_step is None:
        return ns
    return ns - max(0, measured.every_step.wall_ns - measured.step.wall_ns)


def phase_of_mean_step(measured: Measured, phase: Phase) -> int:
    """Time of a phase in the mean of all steps; 0 where the loop cannot tell."""
    step = measured.every_step or measured.step
    return (getattr(step.phases_ns, phase) or 0) if step is not None else 0


def in_typical_step(measured: Measured, ns: int) -> int:
    """A mean over all sampled steps as part of the typical one: a neighbour's noise made all its parts longer."""
    if measured.step is None or measured.every_step is None or measured.every_step.wall_ns <= 0:
        return ns
    return round(ns * min(1.0, measured.step.wall_ns / measured.every_step.wall_ns))


def at_most(ns: int, samples: int, measured: Measured, whole: Whole) -> int:
    """The most that goes with a sampled time: one deviation of its count is its error."""
    return with_beyond(ns, measured, whole, 1 / math.sqrt(max(samples, LEAST_SAMPLES)))


def time_of(measured: Measured, kind: HostKind, phase: Phase, whole: Whole) -> int:
    """Time of the mean step in work of this kind: as sampled or, where a loop tells that phase, as timed."""
    work = work_of(measured, kind)
    return min(whole.wall_ns, max(work.host_ns if work else 0, phase_of_mean_step(measured, phase)))


def found_in(
    measured: Measured, work: HostWork | None, cost_ns: int, whole: Whole, *, rule: str, message: str, advice: str
) -> Finding:
    """The finding of a rule over work that could be done a quarter as often, or not by the process that trains."""
    at = hottest_call(work) if work is not None else None
    return Finding(
        rule=rule,
        severity=severity_of(cost_ns, whole),
        message=message,
        advice=advice,
        confidence="high" if work is None or work.samples >= _SURE_SAMPLES else "medium",
        evidence=tuple(host_evidence(work)) if work is not None else (),
        file=at.file if at else None,
        line=at.line if at else None,
        function=at.function if at else None,
        cost_ns=cost_ns,
        saving_low_ns=round(LESS_OFTEN * cost_ns),
        saving_high_ns=with_beyond(cost_ns, measured, whole)
        if work is None
        else at_most(cost_ns, work.samples, measured, whole),
    )


def hottest_call(work: HostWork) -> Location:
    """The line that does most of this work, or the one that calls its function.

    Where the work is spread over lines of a function, that function is called too often, by the line that calls it.
    """
    hottest = work.lines[0]
    mine = [line for line in work.lines if (line.file, line.function) == (hottest.file, hottest.function)]
    if hottest.called_from is not None and max(line.host_ns for line in mine) < _MOST * sum(
        line.host_ns for line in mine
    ):
        return hottest.called_from
    return hottest.at


def traced_ns(measured: Measured, phase: Phase) -> int:
    """Time of a phase in the step traced by line: of its lines that are called from no other line of it."""
    rows = [row for row in measured.lines.traced if row.phase == phase] if measured.lines is not None else []
    lines = {(row.file, row.line) for row in rows}
    return sum(row.host_ns for row in rows if not any((by.file, by.line) in lines for by in row.callers))


def host_evidence(work: HostWork) -> Iterator[Evidence]:
    """The amount, and the hottest lines with the library they were in."""
    yield Evidence("host time", round(work.host_ns / 1e6, 3), "ms", f"{work.samples} samples of stacks")
    for line in work.lines[:3]:
        yield Evidence(
            f"line {line.line} of {line.function}", round(line.host_ns / 1e6, 3), "ms", in_words(line) or "its own code"
        )


def in_words(line: HostLine) -> str:
    """``in PIL``, or nothing where the line's own code ran."""
    return f"in {line.within.split(' > ')[-1]}" if line.within else ""
