"""Host work that rules on Python code share: its amount, its line, and the line to edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit._location import Location
from perfkit.findings import Confidence, Evidence, Finding
from perfkit.ledger.step_budget import StepBudget, shows_amount
from perfkit.measures.results.host import HostKind, HostLine, HostWork
from perfkit.measures.results.loop import LoopTime
from perfkit.run.records import LineRow, Phase

#: The error of a count of a hundred samples is a tenth: as certain as a timed phase.
CERTAIN_SAMPLES = 100
#: The share that doing work less often saves at least: a quarter as often is a small request for work that ran in every
#: step, or in every few.
LESS_OFTEN = 0.75
#: What a line calls besides what it reads: a forward, a backward, an optimizer's step, a fetch.
_NOT_READ = frozenset({"torch.nn", "torch.autograd", "torch.optim", "torch.utils.data"})


def work_of(works: Sequence[HostWork], kind: HostKind, loop: LoopTime | None = None) -> HostWork | None:
    """The host work of one kind, None where it has too few samples for an amount.

    With ``loop`` few are enough where steps in a rhythm pass their time in one of its lines: the clock shows that.
    """
    rare = [at for part in (loop.rare if loop is not None else ()) for at in (part.at, part.called) if at is not None]
    places = {(at.file, at.line) for at in rare}
    return next((work for work in works if work.kind == kind and _is_enough(work, places)), None)


def _is_enough(work: HostWork, places: set[tuple[str, int | None]]) -> bool:
    in_place = any((line.file, line.line) in places for line in work.lines)
    return in_place or work.followed or shows_amount(work.samples, work.total_samples)


def time_of(work: HostWork | None, phase: Phase, step: StepBudget) -> int:
    """Time of the step in this work: as sampled or, where the loop times that phase, as timed."""
    timed = step.phase(phase)
    return min(step.wall_ns, max(work.host_ns if work else 0, timed.ns if timed else 0))


def less_often(
    work: HostWork | None, cost: int, step: StepBudget, *, message: str, advice: str, change: Location | None
) -> Finding:
    """A finding about work that could be done a quarter as often, or by another process."""
    samples = work.samples if work is not None else None
    return step.finding(
        cost=cost,
        saving=(step.minimum_saving(LESS_OFTEN * cost, samples=samples), step.maximum_saving(cost, samples=samples)),
        spent=work.lines[0] if work is not None else None,
        change=change,
        message=message,
        advice=advice,
        confidence=confidence_in(work) if work is not None else "high",
        evidence=tuple(evidence_of(work)) if work is not None else (),
    )


def confidence_in(work: HostWork) -> Confidence:
    """How certain a sampled time is."""
    return "high" if work.samples >= CERTAIN_SAMPLES else "medium"


def samples_of_reads(row: LineRow, *, inside: bool = False) -> int:
    """The samples in which a line computed what the host reads; with ``inside`` only those in what it calls."""
    return sum(
        count
        for within, count in row.within.items()
        if _NOT_READ.isdisjoint(within.split(" > ")) and (within or not inside)
    )


def evidence_of(work: HostWork) -> Iterator[Evidence]:
    """The amount, and the hottest lines with the library they were in."""
    source = "the step for lines" if work.followed else f"{work.samples} samples of stacks"
    yield Evidence.ms("host time", work.host_ns, source)
    for line in work.lines[:3]:
        yield Evidence.ms(f"line {line.line} of {line.function}", line.host_ns, library_of(line) or "its own code")


def library_of(line: HostLine) -> str:
    """``in PIL``, or nothing where the line's own code ran."""
    return f"in {line.within.split(' > ')[-1]}" if line.within else ""
