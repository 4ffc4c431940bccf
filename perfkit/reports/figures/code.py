"""Findings and lines beside their source."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from perfkit._format import shown_path, shown_place, shown_saving, why_unquantified
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.measures.results.host import SourceLine
from perfkit.reports.figures.data import FileLines, FindingFigure, EvidenceFigure, LineOfFile, LinesFigure
from perfkit.reports.figures.excerpts import Sources

#: Unmarked lines that are shown above and below one with numbers.
_AROUND = 1


def findings_of(diagnosis: Diagnosis, sources: Sources) -> tuple[FindingFigure, ...]:
    """Findings in the diagnosis' order, without those that another one explains: their messages stand there."""
    roots = [finding for finding in diagnosis.findings if finding.follows is None]
    done = []
    for number, finding in enumerate(roots):
        # Two findings of one rule: the first one tells what they explain.
        first = finding.rule not in {earlier.rule for earlier in roots[:number]}
        explained = [other.message for other in diagnosis.findings if first and other.follows == finding.rule]
        done.append(_finding(finding, tuple(explained), diagnosis, sources))
    return tuple(done)


def _finding(finding: Finding, explained: tuple[str, ...], diagnosis: Diagnosis, sources: Sources) -> FindingFigure:
    spent, wall_ns = finding.spent, diagnosis.figures.wall_ns
    excerpt = sources.excerpt(spent.file, spent.line) if spent is not None and spent.line is not None else None
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
            EvidenceFigure(
                name=item.name,
                value="not measured" if item.value is None else f"{item.value} {item.unit}".strip(),
                source=item.source,
            )
            for item in finding.evidence
        ),
        explains=explained,
        excerpt=excerpt,
    )


def lines_of(diagnosis: Diagnosis, sources: Sources) -> LinesFigure | None:
    """The user's lines in the step for lines, by file, longest file first; else the sampled ones."""
    figures = diagnosis.figures
    by_file: dict[str, list[LineOfFile]] = defaultdict(list)
    if figures.source_lines:
        for one in figures.source_lines:
            by_file[one.file].append(_measured(one))
        source = "Recorded with the times of lines, which makes a step slower: the times say where, not how long."
    else:
        for row in figures.lines:
            if row.worker is None:
                by_file[row.file].append(LineOfFile(line=row.line, function=row.function, host_ns=row.host_ns))
        source = "Host time per step, by sampling."
    if not by_file:
        return None
    whole = {file: sum(line.host_ns or 0 for line in lines) for file, lines in by_file.items()}
    files = sorted(by_file, key=lambda file: -whole[file])
    return LinesFigure(source=source, files=tuple(_file(file, by_file[file], sources) for file in files))


def _measured(one: SourceLine) -> LineOfFile:
    return LineOfFile(
        line=one.line if one.line is not None else one.first_line,
        function=one.function,
        whole=one.line is None,
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
