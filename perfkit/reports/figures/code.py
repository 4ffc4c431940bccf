"""Findings and measured lines, with their source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from perfkit._format import evidence_value, ms, shown_change, shown_path, shown_place, shown_saving, why_unquantified
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import SURE, Finding
from perfkit.measures.host.phase_scale import ScaledPaths
from perfkit.measures.results.host import SourceLine
from perfkit.reports.advised_diffs import advised_diff
from perfkit.reports.figures.data import EvidenceFigure, Excerpt, FileLines, FindingFigure, LineOfFile, LinesFigure
from perfkit.reports.figures.excerpts import Sources

#: Unmarked lines that are shown above and below one with numbers.
_AROUND = 1


def findings_of(diagnosis: Diagnosis, sources: Sources) -> tuple[FindingFigure, ...]:
    """The findings that no other one explains, each with the messages of those that it explains."""
    return tuple(_finding(finding, explained, diagnosis, sources) for finding, explained in diagnosis.causes)


def _finding(finding: Finding, explained: Sequence[Finding], diagnosis: Diagnosis, sources: Sources) -> FindingFigure:
    spent, wall_ns = finding.spent, diagnosis.figures.wall_ns
    diff = advised_diff(finding, sources)
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
        sure=SURE[finding.confidence] if finding.quantified else "",
        diff=diff.lines if diff is not None else (),
        diff_place=diff.place if diff is not None else "",
    )


def _excerpt(place: Location | None, sources: Sources) -> Excerpt | None:
    return sources.excerpt(place.file, place.line) if place is not None and place.line is not None else None


def lines_of(diagnosis: Diagnosis, scaled: ScaledPaths | None, sources: Sources) -> LinesFigure | None:
    """The user's lines by file, longest first: host time from samples, else as it was recorded.

    Counts, and times of the device, are those of the step whose lines were recorded.
    """
    figures = diagnosis.figures
    by_file: dict[str, list[LineOfFile]] = defaultdict(list)
    if scaled is not None:
        source = _of_samples(scaled, figures.source_lines, by_file)
    elif figures.source_lines:
        for one in figures.source_lines:
            by_file[one.file].append(_measured(one))
        source = (
            "Host times are those of the recorded steps, which recording slows, and short lines more than long ones: "
            "compare the lines with each other, not with the step."
        )
    else:
        for row in figures.lines:
            if row.worker is None:
                by_file[row.file].append(LineOfFile(line=row.line, function=row.function, host_ns=row.host_ns))
        source = "Host time per step, from samples of steps that nothing recorded."
    if not by_file:
        return None
    totals = {file: sum(line.host_ns or 0 for line in lines) for file, lines in by_file.items()}
    files = sorted(by_file, key=lambda file: -totals[file])
    return LinesFigure(source=source, files=tuple(_file(file, by_file[file], sources) for file in files))


def _of_samples(scaled: ScaledPaths, counted: Sequence[SourceLine], by_file: dict[str, list[LineOfFile]]) -> str:
    """Fill ``by_file``; returns how the lines were measured."""
    times = line_times(scaled)
    rest = dict(times)
    for one in counted:
        at = (one.file, one.line or one.first_line)
        # What is left of a function whose lines are known has no samples of its own.
        own_ns, total_ns = rest.pop(at, (0, 0)) if one.line is not None else (0, 0)
        by_file[one.file].append(
            msgspec.structs.replace(_measured(one), host_ns=round(own_ns), total_ns=round(total_ns))
        )
    for (file, line), (own_ns, total_ns) in rest.items():
        by_file[file].append(LineOfFile(line=line, host_ns=round(own_ns), total_ns=round(total_ns)))
    if not scaled.clock_ns:
        return "Host time of the whole program by sampling, because no step was timed."
    sum_ns, step_ns = sum(own_ns for own_ns, _ in times.values()), sum(scaled.clock_ns.values())
    text = (
        f"Host time per step, from samples of steps that nothing recorded: {ms(sum_ns)} of the {ms(step_ns)} on the "
        "step clock, each phase by itself."
    )
    if short := scaled.without_samples:
        text += f" No sample was taken in {', '.join(f'{phase} ({ms(ns)})' for phase, ns in short.items())}."
    if counted:
        text += " Counts and device times are those of the step whose lines were recorded."
    return text


def line_times(scaled: ScaledPaths) -> dict[tuple[str, int], tuple[float, float]]:
    """(file, line) -> host time in ns with the libraries that it calls, and with the user's functions as well."""
    paths = scaled.paths
    own: dict[tuple[str, int], float] = defaultdict(float)
    total: dict[tuple[str, int], float] = defaultdict(float)
    for node, samples in enumerate(paths.samples):
        ns = samples * sum(scaled.scale.get(paths.phase[node], {}).values())
        if not ns:
            continue
        on_path: list[tuple[str, int]] = []
        above = node
        while above >= 0:
            frame = paths.frames[paths.frame[above]]
            if frame.owner == "user" and frame.line is not None and (frame.file, frame.line) not in on_path:
                on_path.append((frame.file, frame.line))
            above = paths.parent[above]
        for at in on_path:
            total[at] += ns
        if on_path:
            own[on_path[0]] += ns
    return {at: (own.get(at, 0.0), ns) for at, ns in total.items()}


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
