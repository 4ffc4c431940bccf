"""The diagnosis of many ranks on a terminal: 25 lines, the first screen of any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from perfkit._format import ms, percent, shown_path
from perfkit._text import printable
from perfkit.ledger.ledger_text import TextTable
from perfkit.reports.console import print_line, print_text, table_lines, text_lines
from perfkit.reports.ranks.answers import (
    how_clocks_agree,
    late_ranks,
    next_step,
    notes_of,
    waits_most,
    what_was_compared,
    when,
    where_a_step_goes,
    who,
    worth_opening,
)

if TYPE_CHECKING:
    from perfkit.ranks.diagnosing import RankLateness, RanksDiagnosis
    from perfkit.ranks.path_diagnosis import DiagnosedRanks

#: What a terminal shows without scrolling; of notes as many are printed as fit.
_LINES = 25
#: Lines of the verdict and of the next step, and rows of the tables, with which everything else fits.
_SOURCE, _VERDICT, _NOTE, _NEXT_LINES, _RANKS, _FINDINGS = 2, 3, 2, 2, 4, 3


def print_ranks(found: DiagnosedRanks, console: Console) -> None:
    """Write the verdict, what a step spends in waiting, the ranks that matter, what is late, and what to open next."""
    diagnosis = found.diagnosis
    lines = _wrapped(Text(what_was_compared(diagnosis), style="dim"), console, _SOURCE)
    lines += _wrapped(Text(diagnosis.verdict, style="bold"), console, _VERDICT)
    if diagnosis.wall_ns is not None:
        lines.append(Text(where_a_step_goes(diagnosis, diagnosis.wall_ns)))
    if diagnosis.ranks:
        chosen = _ranks_that_matter(diagnosis)
        lines += [Text(), *table_lines(_ranks_table(chosen), console)]
        if left := len(diagnosis.ranks) - len(chosen):
            lines.append(Text(f"{left:,} more: --json", style="dim"))
    if diagnosis.findings:
        lines += [Text(), *table_lines(_findings_table(diagnosis), console)]
    lines.append(Text())
    if diagnosis.clocks:
        lines.append(Text(how_clocks_agree(diagnosis), style="dim"))
    traces = [
        f"perfkit diagnose {shown_path(one.trace)}  # rank {one.rank}, {one.why}"
        for one in worth_opening(found)
        if one.trace is not None
    ]
    after = _wrapped(Text.assemble(("Next: ", "bold"), next_step(found)), console, _NEXT_LINES)
    lines += _notes(diagnosis.missing, console, max(1, _LINES - len(lines) - len(traces) - len(after)))
    for line in lines:
        print_line(line, console)
    for command in traces:
        # Whole, also where it is longer than the terminal is wide: it is copied.
        console.print(Text(printable(command)), soft_wrap=True)
    for line in after:
        print_line(line, console)


def print_ranks_verdict(found: DiagnosedRanks, console: Console) -> None:
    """Write the verdict alone, after the diagnosis of one rank."""
    print_text(Text.assemble(f"{len(found.diagnosis.ranks):,} ranks: ", (found.diagnosis.verdict, "bold")), console)
    print_line(Text(f"perfkit ranks {shown_path(found.diagnosis.source)}", style="dim"), console)


def _wrapped(text: Text, console: Console, most: int) -> list[Text]:
    lines = text_lines(text, console)
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1].append(" ...")]


def _ranks_that_matter(diagnosis: RanksDiagnosis) -> list[RankLateness]:
    """Late ones, the one that waits most, and those that the others wait for; the longest own time first."""
    by_rank = {one.rank: one for one in diagnosis.ranks}
    late = [by_rank[rank] for rank in late_ranks(diagnosis) if rank in by_rank]
    given = sorted(diagnosis.ranks, key=lambda one: -one.given_ns)
    most = waits_most(diagnosis)
    # One row stays for a rank that waits, beside which the others are read.
    order = [*late[: _RANKS - 1], *([most] if most is not None else []), *given]
    chosen = list({one.rank: one for one in order}.values())[:_RANKS]
    return sorted(chosen, key=lambda one: -one.own_ns)


def _ranks_table(ranks: Sequence[RankLateness]) -> TextTable:
    rows = [
        (
            f"rank {one.rank}",
            one.host,
            ms(one.own_ns),
            ms(one.waiting_ns) if one.waiting_ns is not None else "-",
            ms(one.given_ns),
            percent(one.last_share, 1.0),
        )
        for one in ranks
    ]
    return TextTable(("per step", "host", "own time", "waits", "makes others wait", "last in"), rows, 2)


def _findings_table(diagnosis: RanksDiagnosis) -> TextTable:
    rows = [
        (
            who(finding),
            f"{finding.cause} ({finding.detail})" if finding.detail else finding.cause,
            when(finding),
            ms(finding.late_ns),
            f"{ms(finding.saving_ns)} ({percent(finding.saving_ns, diagnosis.wall_ns or 0)})",
        )
        for finding in diagnosis.findings[:_FINDINGS]
    ]
    return TextTable(("late", "by", "in", "late by", "saves per step"), rows, 3)


def _notes(missing: Sequence[str], console: Console, room: int) -> list[Text]:
    """As many as fit into ``room`` lines."""
    notes = notes_of(missing)
    lines: list[Text] = []
    for number, note in enumerate(notes):
        wrapped = _wrapped(Text(f"Note: {note}", style="dim"), console, _NOTE)
        if len(lines) + len(wrapped) > room - (number < len(notes) - 1):
            return [*lines, Text(f"{len(notes) - number:,} notes more: --json", style="dim")]
        lines += wrapped
    return lines
