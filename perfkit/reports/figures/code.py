"""Findings and measured lines, with their source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from perfkit._format import evidence_value, shown_change, shown_path, shown_place, shown_saving, why_unquantified
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.measures.results.host import SourceLine
from perfkit.reports.figures.data import EvidenceFigure, Excerpt, FileLines, FindingFigure, LineOfFile, LinesFigure
from perfkit.reports.figures.excerpts import Sources

#: Unmarked lines that are shown above and below one with numbers.
_AROUND = 1


def findings_of(diagnosis: Diagnosis, sources: Sources) -> tuple[FindingFigure, ...]:
    """The findings that no other one explains, each with the messages of those that it explains."""
    return tuple(_finding(finding, explained, diagnosis, sources) for finding, explained in diagnosis.causes)


def _finding(finding: Finding, explained: Sequence[Finding], diagnosis: Diagnosis, sources: Sources) -> FindingFigure:
    spent, wall_ns = finding.spent, diagnosis.figures.wall_ns
    return FindingFigure(
        rule=finding.rule,
        severity=finding.severity,
        message=finding.message,
        advice=finding.advice,
        confidence=finding.confidence,
        place=shown_place(finding),
        function=(spent.function if spent is not None else None) or "",
        cost_ns=finding.cost_ns,
        saving=shown_saving(finding),
        cost_share=min(1.0, finding.cost_ns / wall_ns) if finding.cost_ns is not None and wall_ns else None,
        why_unquantified=why_unquantified(finding),
        evidence=tuple(
            EvidenceFigure(name=item.name, value=evidence_value(item), source=item.source) for item in finding.evidence
        ),
        explains=tuple(other.message for other in explained),
        excerpt=_excerpt(spent, sources),
        change=shown_change(finding),
        change_excerpt=_excerpt(finding.change, sources),
    )


def _excerpt(place: Location | None, sources: Sources) -> Excerpt | None:
    return sources.excerpt(place.file, place.line) if place is not None and place.line is not None else None


def lines_of(diagnosis: Diagnosis, sources: Sources) -> LinesFigure | None:
    """The user's lines from the step that is traced by line, else from sampling; by file, longest first."""
    figures = diagnosis.figures
    by_file: dict[str, list[LineOfFile]] = defaultdict(list)
    if figures.source_lines:
        for one in figures.source_lines:
            by_file[one.file].append(_measured(one))
        source = "Traced by line, which slows the step: compare the lines with each other, not with the step."
    else:
        for row in figures.lines:
            if row.worker is None:
                by_file[row.file].append(LineOfFile(line=row.line, function=row.function, host_ns=row.host_ns))
        source = "Host time per step, by sampling."
    if not by_file:
        return None
    totals = {file: sum(line.host_ns or 0 for line in lines) for file, lines in by_file.items()}
    files = sorted(by_file, key=lambda file: -totals[file])
    return LinesFigure(source=source, files=tuple(_file(file, by_file[file], sources) for file in files))


def _measured(one: SourceLine) -> LineOfFile:
    return LineOfFile(
        line=one.line if one.line is not None else one.first_line,
        function=one.function,
        is_remainder=one.line is None,
        host_ns=one.self_ns,
        total_ns=one.total_ns,
        device_ns=one.device_ns,
        ops=one.ops,
        syncs=one.syncs,
        allocated_bytes=one.allocated_bytes,
    )


def _file(file: str, rows: list[LineOfFile], sources: Sources) -> FileLines:
    text, note = sources.lines(file)
    numbered: dict[int, list[LineOfFile]] = defaultdict(list)
    for row in rows:
        numbered[row.line].append(row)
        for line in range(max(1, row.line - _AROUND), min(row.line + _AROUND, len(text)) + 1):
            numbered[line]  # its neighbours, for context
    lines = [
        msgspec.structs.replace(row, text=text[line - 1] if line <= len(text) else None)
        for line in sorted(numbered)
        for row in numbered[line] or (LineOfFile(line=line),)
    ]
    return FileLines(file=shown_path(file), note=note, lines=tuple(lines))
