"""A diagnosis or a comparison as markdown: for an issue, a pull request, a note. Everything from outside is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TextIO

from perfkit._format import ms, percent, rate, shown_path, shown_place, shown_saving, why_unquantified
from perfkit._text import without_controls
from perfkit.comparison.results import Comparison, Difference
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.reports.kernel_profile_rows import CHANGE_COLUMNS, PROFILE_COLUMNS, Columns, change_rows, profile_rows
from perfkit.run.records import PHASES

#: What markdown or the HTML inside it gives a meaning.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&-])")


def write_markdown(answer: Diagnosis | Comparison, file: TextIO) -> None:
    """Write the answer to ``file`` as markdown (GitHub's tables)."""
    lines = _diagnosis(answer) if isinstance(answer, Diagnosis) else _comparison(answer)
    file.write("\n".join(lines).rstrip() + "\n")


def _text(words: str) -> str:
    """Words as they stand, whatever characters they hold: names come from files that anyone may have written."""
    return _SPECIAL.sub(r"\\\1", without_controls(words))


def _prose(words: str) -> str:
    """Sentences of perfkit's own, which may name what came from outside: only what could become markup is escaped."""
    return re.sub(r"([\\`*_\[\]<>|&])", r"\\\1", without_controls(words, " "))


def _code(words: str) -> str:
    """Inline code: no character has a meaning in it but the fence itself, and a bar in a table."""
    return "`" + without_controls(words).replace("`", "'").replace("|", "\\|") + "`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], numbers: int) -> Iterator[str]:
    """A table whose columns from ``numbers`` on are aligned to the right."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "|".join("---" if column < numbers else "---:" for column in range(len(head))) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"**{_prose(diagnosis.verdict)}**"
    yield ""
    at = diagnosis.step.source if diagnosis.step is not None else ""
    yield f"{_code(shown_path(diagnosis.source))}{' · ' + _prose(at) if at else ''}"
    yield ""
    if diagnosis.phases is not None:
        times = {name: ns for name in PHASES if (ns := getattr(diagnosis.phases, name))}
        total = sum(times.values())
        rows = [(name, ms(ns), percent(ns, total)) for name, ns in times.items()]
        yield from _table(("phase", "per step", "share"), rows, 1)
    for device in diagnosis.figures.devices:
        name = f"device {device.device}" + (f" ({_text(device.name)})" if device.name else "")
        busy, idle = (percent(ns, device.window_ns) for ns in (device.busy_ns, device.idle_ns))
        yield f"{name}: busy {busy}, idle {idle}"
        yield ""
    if diagnosis.figures.kernel_profiles is not None:
        yield from _kernels(PROFILE_COLUMNS, profile_rows(diagnosis.figures.kernel_profiles))
    roots = [finding for finding in diagnosis.findings if finding.follows is None]
    for number, finding in enumerate(roots, start=1):
        yield from _finding(number, finding, diagnosis)
    for sentence in diagnosis.missing:
        yield f"- Note: {_prose(sentence)}"


def _kernels(columns: Columns, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Kernels that Nsight Compute profiled, one a row."""
    named = [(_code(name), *(_text(cell) for cell in cells)) for name, *cells in rows]
    yield from _table(tuple(heading for heading, _ in columns), named, 1)


def _finding(number: int, finding: Finding, diagnosis: Diagnosis) -> Iterator[str]:
    place, preposition = shown_place(finding), "at" if finding.spent is not None else "in"
    yield f"### {number}. {finding.rule}" + (f" {preposition} {_code(place)}" if place else "")
    yield ""
    if finding.cost_ns is not None:
        per = " per step" if diagnosis.step is not None else ""
        saving = f", saves {text}" if (text := shown_saving(finding)) else ""
        yield f"**{ms(finding.cost_ns)}{per}{saving}** ({finding.severity}, confidence {finding.confidence})"
    else:
        reason = f": {_prose(text)}" if (text := why_unquantified(finding)) else ""
        yield f"Not quantified ({finding.severity}, confidence {finding.confidence}){reason}"
    yield ""
    yield _prose(finding.message)
    yield ""
    yield f"→ {_prose(finding.advice)}"
    yield ""
    for other in diagnosis.findings:
        if other.follows == finding.rule:
            yield f"Explains {other.rule}: {_prose(other.message)}"
            yield ""
    if finding.evidence:
        rows = [
            (
                _prose(item.name),
                "not measured" if item.value is None else f"{_text(str(item.value))} {_prose(item.unit)}".strip(),
                _prose(item.source),
            )
            for item in finding.evidence
        ]
        yield "<details><summary>evidence</summary>"
        yield ""
        yield from _table(("what", "value", "from"), rows, 3)
        yield "</details>"
        yield ""


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield f"**{_prose(comparison.verdict)}**"
    yield ""
    yield f"{_code(comparison.before)} → {_code(comparison.after)}"
    yield ""
    yield from (f"- **Broken budget:** {_prose(sentence)}" for sentence in comparison.broken)
    if comparison.broken:
        yield ""
    if comparison.kernel_profiles:
        yield from _kernels(CHANGE_COLUMNS, change_rows(comparison.kernel_profiles))
    rows = [(_named(d), _ms(d.before_ns), _ms(d.after_ns), d.changed, d.change) for d in comparison.differences]
    if rows:
        yield from _table(("time", "before", "after", "change", "verdict"), rows, 1)
    if comparison.counts:
        counted = [(count.name, rate(count.before), rate(count.after)) for count in comparison.counts]
        yield from _table(("count", "before", "after"), counted, 1)
    yield f"Workload: {comparison.workload}. Result: {comparison.result}."
    yield ""
    yield from (f"- changed: {_prose(sentence)}" for sentence in comparison.changed)
    for title, findings in (("gone", comparison.gone), ("new", comparison.new)):
        for finding in findings:
            place = f" at {_code(text)}" if (text := shown_place(finding)) else ""
            cost = f", {ms(finding.cost_ns)}" if finding.cost_ns is not None else ""
            yield f"- {title}: {finding.rule}{place}{cost}"
    yield from (f"- {_prose(note)}" for note in comparison.notes)


def _named(difference: Difference) -> str:
    if difference.kind in ("step", "phase"):
        return difference.name
    return f"{difference.kind} {_code(difference.name)}"


def _ms(ns: int | None) -> str:
    return "-" if ns is None else ms(ns)
