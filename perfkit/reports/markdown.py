"""A diagnosis or a comparison as markdown, for an issue or a pull request. All text from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from perfkit._format import (
    evidence_value,
    ms,
    percent,
    rate,
    shown_change,
    shown_path,
    shown_place,
    shown_places,
    shown_saving,
    size,
    why_unquantified,
)
from perfkit.comparison.results import Comparison, Difference
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.ledger.ledger import ClaimedLedger
from perfkit.ledger.ledger_text import TextTable, account_line, parts_table, rows_table
from perfkit.measures.results.steps import TypicalStep
from perfkit.reports._markdown import escaped, folded_table, inline_code, markdown_table, prose
from perfkit.reports.kernel_profile_rows import CHANGE_COLUMNS, PROFILE_COLUMNS, Columns, change_rows, profile_rows
from perfkit.reports.memory import memory_tables, peak_sentence

#: Rows of each table of memory: they are folded.
_MEMORY_ROWS = 10


def write_markdown(answer: Diagnosis | Comparison, file: TextIO) -> None:
    """Write the answer to ``file`` as markdown (GitHub's tables)."""
    lines = _diagnosis(answer) if isinstance(answer, Diagnosis) else _comparison(answer)
    file.write("\n".join(lines).rstrip() + "\n")


def _diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"**{prose(diagnosis.verdict)}**"
    yield ""
    at = diagnosis.step.source if diagnosis.step is not None else ""
    yield f"{inline_code(shown_path(diagnosis.source))}{' · ' + prose(at) if at else ''}"
    yield ""
    if times := diagnosis.phase_times:
        total = sum(times.values())
        rows = [(name, ms(ns), percent(ns, total)) for name, ns in times.items()]
        yield from markdown_table(("phase", "per step", "share"), rows, 1)
    for device in diagnosis.figures.devices:
        name = f"device {device.device}" + (f" ({escaped(device.name)})" if device.name else "")
        name += " in the window" if isinstance(diagnosis.step, TypicalStep) else ""
        busy, idle = (percent(ns, device.window_ns) for ns in (device.busy_ns, device.idle_ns))
        yield f"{name}: busy {busy}, idle {idle}"
        yield ""
    if diagnosis.shown_ledger is not None:
        yield from _ledger(diagnosis, diagnosis.shown_ledger)
    if diagnosis.figures.kernel_profiles is not None:
        yield from _kernels(PROFILE_COLUMNS, profile_rows(diagnosis.figures.kernel_profiles))
    for number, (finding, explained) in enumerate(diagnosis.causes, start=1):
        yield from _finding(number, finding, explained, diagnosis)
    for memory in diagnosis.figures.peak_memory:
        yield prose(peak_sentence(memory))
        yield ""
        for table in memory_tables(memory, diagnosis.figures.checkpoint_trades, _MEMORY_ROWS):
            parts = [tuple(escaped(cell) for cell in row) for row in table.rows]
            yield from folded_table(table.head[0], table.head, parts, table.numbers)
    for sentence in diagnosis.missing:
        yield f"- Note: {prose(sentence)}"
    if diagnosis.not_asked:
        needs = [(prose(rule.rule), prose(" and ".join(rule.needs))) for rule in diagnosis.not_asked]
        yield ""
        yield from folded_table("rules that were not asked", ("rule", "needs"), needs, 2)


def _ledger(diagnosis: Diagnosis, ledger: ClaimedLedger) -> Iterator[str]:
    """How the step is accounted for; its rows are folded."""

    def cells(table: TextTable) -> list[tuple[str, ...]]:
        # Names of ops, files and kernels come from the recording.
        return [tuple(escaped(cell) for cell in row) for row in table.rows]

    yield prose(account_line(ledger))
    yield ""
    if diagnosis.outcome == "unexplained":
        parts = parts_table(ledger)
        yield from markdown_table(parts.head, cells(parts), parts.numbers)
    rows = rows_table(ledger)
    yield from folded_table(f"where the {ledger.ledger.per} goes", rows.head, cells(rows), rows.numbers)


def _kernels(columns: Columns, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Kernels that Nsight Compute profiled, one a row."""
    named = [(inline_code(name), *(escaped(cell) for cell in cells)) for name, *cells in rows]
    yield from markdown_table(tuple(heading for heading, _ in columns), named, 1)


def _finding(number: int, finding: Finding, explained: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[str]:
    place, preposition = shown_place(finding), "in"
    if finding.spent is not None:
        preposition = "spent at" if finding.change is not None else "at"
    yield f"### {number}. {finding.rule}" + (f" {preposition} {inline_code(place)}" if place else "")
    yield ""
    if finding.cost_ns is not None:
        per = " per step" if diagnosis.step is not None else ""
        saving = f", saves {text}" if (text := shown_saving(finding)) else ""
        yield f"**{ms(finding.cost_ns)}{per}{saving}** ({finding.severity}, confidence {finding.confidence})"
    else:
        reason = f". Not quantified: {prose(text)}" if (text := why_unquantified(finding)) else ""
        yield f"{finding.severity.capitalize()}, confidence {finding.confidence}{reason}"
    yield ""
    yield prose(finding.message)
    yield ""
    change = f"Change {inline_code(text)}: " if (text := shown_change(finding)) else ""
    yield f"→ {change}{prose(finding.advice)}"
    yield ""
    for other in explained:
        yield f"Explains {other.rule}: {prose(other.message)}"
        yield ""
    if finding.evidence:
        rows = [
            (
                prose(item.name),
                prose(evidence_value(item)),
                prose(item.source),
            )
            for item in finding.evidence
        ]
        yield from folded_table("evidence", ("what", "value", "from"), rows, 3)


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield f"**{prose(comparison.verdict)}**"
    yield ""
    yield f"{inline_code(comparison.before)} → {inline_code(comparison.after)}"
    yield ""
    yield from (f"- **Broken budget:** {prose(sentence)}" for sentence in comparison.broken)
    if comparison.broken:
        yield ""
    if comparison.kernel_profiles:
        yield from _kernels(CHANGE_COLUMNS, change_rows(comparison.kernel_profiles))
    rows = [(_named(d), _ms(d.before_ns), _ms(d.after_ns), d.changed, d.change) for d in comparison.differences]
    if rows:
        yield from markdown_table(("time", "before", "after", "change", "verdict"), rows, 1)
    if comparison.counts:
        counted = [(count.name, rate(count.before), rate(count.after)) for count in comparison.counts]
        yield from markdown_table(("count", "before", "after"), counted, 1)
    if comparison.memory:
        held = [
            (
                f"{escaped(one.device)} {one.what}",
                size(one.before_bytes),
                size(one.after_bytes),
                one.changed,
                one.change,
            )
            for one in comparison.memory
        ]
        yield from markdown_table(("memory", "before", "after", "change", "verdict"), held, 1)
    yield f"Workload: {comparison.workload}. Result: {comparison.result}."
    yield ""
    yield from (f"- changed: {prose(sentence)}" for sentence in comparison.changed)
    for title, findings in (("no longer found", comparison.gone), ("new", comparison.new)):
        for finding in findings:
            place = f" at {inline_code(text)}" if (text := shown_places(finding)) else ""
            cost = f", {ms(finding.cost_ns)}" if finding.cost_ns is not None else ""
            yield f"- {title}: {finding.rule}{place}{cost}"
    yield from (f"- {prose(note)}" for note in comparison.notes)


def _named(difference: Difference) -> str:
    if difference.kind in ("step", "recording", "phase"):
        return difference.name
    return f"{difference.kind} {inline_code(difference.name)}"


def _ms(ns: int | None) -> str:
    return "-" if ns is None else ms(ns)
