"""The diagnosis of many ranks as markdown, for an issue. All text from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from perfkit._format import ms, percent, shown_path
from perfkit.reports._markdown import escaped, folded_table, inline_code, markdown_table, prose
from perfkit.reports.ranks.answers import (
    how_clocks_agree,
    next_step,
    notes_of,
    what_was_compared,
    when,
    where_a_step_goes,
    who,
    worth_opening,
)

if TYPE_CHECKING:
    from perfkit.ranks.diagnosing import RankLateness
    from perfkit.ranks.path_diagnosis import DiagnosedRanks

#: Ranks that the folded table lists, the longest own time first, and notes: an issue has room for 65,536 characters.
_RANKS, _NOTES = 100, 20


def write_ranks_markdown(found: DiagnosedRanks, file: TextIO) -> None:
    """Write the diagnosis to ``file`` as markdown (GitHub's tables)."""
    file.write("\n".join(_lines(found)).rstrip() + "\n")


def _lines(found: DiagnosedRanks) -> Iterator[str]:
    diagnosis = found.diagnosis
    yield f"**{prose(diagnosis.verdict)}**"
    yield ""
    yield prose(what_was_compared(diagnosis))
    yield ""
    if diagnosis.wall_ns is not None:
        yield prose(where_a_step_goes(diagnosis, diagnosis.wall_ns))
        yield ""
    if diagnosis.findings:
        rows = [
            (
                prose(who(finding)),
                escaped(", ".join(finding.hosts[:3])),
                prose(f"{finding.cause} ({finding.detail})" if finding.detail else finding.cause),
                when(finding),
                ms(finding.late_ns),
                f"{ms(finding.saving_ns)} ({percent(finding.saving_ns, diagnosis.wall_ns or 0)})",
            )
            for finding in diagnosis.findings
        ]
        yield from markdown_table(("late", "host", "by", "in", "late by", "saves per step"), rows, 4)
    opened = [one for one in worth_opening(found) if one.trace is not None]
    for one in opened:
        yield f"- {inline_code(f'perfkit diagnose {shown_path(one.trace or str())}')} (rank {one.rank}, {one.why})"
    if opened:
        yield ""
    yield f"Next: {prose(next_step(found))}"
    yield ""
    if diagnosis.ranks:
        yield from _ranks(diagnosis.ranks)
    if diagnosis.clocks:
        yield f"- {prose(how_clocks_agree(diagnosis))}"
    notes = notes_of(diagnosis.missing)
    yield from (f"- Note: {prose(note)}" for note in notes[:_NOTES])
    if len(notes) > _NOTES:
        yield f"- {len(notes) - _NOTES:,} notes more: --json"


def _ranks(ranks: Sequence[RankLateness]) -> Iterator[str]:
    """Each rank in a folded table, the longest own time first."""
    longest = sorted(ranks, key=lambda one: -one.own_ns)[:_RANKS]
    rows = [
        (
            str(one.rank),
            escaped(one.host),
            ms(one.own_ns),
            ms(one.waiting_ns) if one.waiting_ns is not None else "-",
            ms(one.given_ns),
            percent(one.last_share, 1.0),
        )
        for one in longest
    ]
    title = f"{len(ranks):,} ranks" if len(ranks) == len(longest) else f"{len(longest):,} of {len(ranks):,} ranks"
    yield from folded_table(title, ("rank", "host", "own time", "waits", "makes others wait", "last in"), rows, 2)
