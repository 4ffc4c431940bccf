"""Compares what is diagnosed of a planted trace with its label, and counts the answers of a half."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from trace_suite import PlantedTrace

from perfkit._location import Location
from perfkit.diagnosis import Diagnosis, diagnose


class TraceAnswer(NamedTuple):
    """What a diagnosis says of a trace, compared with the label.

    ``right`` is the whole: the right outcome, the right cause first where one is planted, no alarm where none is.
    ``in_three``, ``right_spent`` and ``right_change`` are about planted causes, None where the label has none.
    """

    trace: PlantedTrace
    right: bool
    outcome: str
    first: str | None
    in_three: bool | None
    right_spent: bool | None
    right_change: bool | None
    alarms: tuple[str, ...]

    @property
    def is_false_all_clear(self) -> bool:
        """A planted cause or an incomplete recording called healthy."""
        return self.outcome == "healthy" and "healthy" not in self.trace.expected


def judge(trace: PlantedTrace) -> TraceAnswer:
    """Builds the trace and judges its diagnosis."""
    with TemporaryDirectory() as folder:
        return compare(trace, diagnose(trace.build(Path(folder))))


def compare(trace: PlantedTrace, found: Diagnosis) -> TraceAnswer:
    """The diagnosis next to the label.

    Raises:
        RuntimeError: a rule failed.
    """
    if failed := [sentence for sentence in found.missing if "failed and was skipped" in sentence]:
        raise RuntimeError(f"{trace.name}: {failed}")
    problems = [finding for finding in found.findings if finding.severity != "info"]
    causes = [finding for finding in problems if finding.follows is None]
    first = causes[0] if causes else None
    right = found.outcome in trace.expected
    right_cause = first is not None and first.rule in trace.accepted
    if found.outcome == "findings":
        right = right and right_cause
    planted = bool(trace.accepted)
    return TraceAnswer(
        trace,
        right,
        found.outcome,
        first.rule if first is not None else None,
        any(finding.rule in trace.accepted for finding in causes[:3]) if planted else None,
        right_cause and _is_at(first and first.spent, trace.spent) if trace.spent else None,
        right_cause and _is_at(first and (first.change or first.spent), trace.change) if trace.change else None,
        tuple(finding.rule for finding in problems),
    )


def _is_at(found: Location | None, wanted: str) -> bool:
    return found is not None and f"{Path(found.file).name}:{found.line}" == wanted


def table(answers: Iterable[TraceAnswer]) -> list[tuple[str, str]]:
    """What `make bench-verdict` prints for a half: a count for each thing that is judged."""
    answers = list(answers)
    planted = [answer for answer in answers if answer.trace.accepted]
    incomplete = [answer for answer in answers if answer.trace.is_incomplete]
    healthy = [answer for answer in answers if not answer.trace.accepted and not answer.trace.is_incomplete]
    complete = [*planted, *healthy]
    rows = (
        ("cause first", planted, [a.right for a in planted]),
        ("cause in three", planted, [a.in_three or a.right for a in planted]),
        ("line where the time passes", planted, [a.right_spent for a in planted if a.right_spent is not None]),
        ("line to edit", planted, [a.right_change for a in planted if a.right_change is not None]),
        ("false alarms", healthy, [bool(a.alarms) for a in healthy]),
        ("false all-clears", answers, [a.is_false_all_clear for a in answers]),
        ("cannot tell, complete", complete, [a.outcome == "cannot-tell" for a in complete]),
        ("cannot tell, incomplete", incomplete, [a.outcome == "cannot-tell" for a in incomplete]),
    )
    return [(name, f"{sum(map(bool, hits))} of {len(hits)}") for name, _, hits in rows]
