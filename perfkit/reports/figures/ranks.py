"""Figure data of many ranks: how late each is in each step, its hosts, a few of them on one time line."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from perfkit._format import ms, percent, shown_path
from perfkit._text import cleaned
from perfkit.ledger.step_budget import StepBudget
from perfkit.ranks.diagnosing import RankLateness, RanksDiagnosis, late_sentence
from perfkit.ranks.lateness_map import LatenessMap
from perfkit.ranks.path_diagnosis import DiagnosedRanks
from perfkit.reports.figures.columns import packed
from perfkit.reports.figures.data import (
    Bar,
    EvidenceFigure,
    Fact,
    FigureData,
    FindingFigure,
    Part,
)
from perfkit.reports.figures.ranks_data import HostFigure, LatenessFigure, RanksFigure
from perfkit.reports.figures.ranks_timeline import timeline_of_ranks
from perfkit.reports.ranks.answers import (
    advice,
    how_clocks_agree,
    next_step,
    notes_of,
    what_was_compared,
    when,
    who,
    worth_opening,
)
from perfkit.reports.tables._table import Column, Table

#: Hosts that are drawn, and sentences about what is missing: a person reads no more.
_HOSTS, _NOTES = 16, 100
#: Levels of lateness that are kept: two bytes for each cell, more than a screen has shades.
_LEVELS = 16_000


def figures_of_ranks(found: DiagnosedRanks) -> FigureData:
    """Make figure data of the ranks of a job, for the same pages that draw a diagnosis."""
    diagnosis = found.diagnosis
    timeline, no_timeline = timeline_of_ranks(found)
    hosts = _hosts(diagnosis.ranks)
    ranks = RanksFigure(
        lateness=_lateness(found.lateness) if found.lateness is not None else None,
        hosts=tuple(hosts[:_HOSTS]) if len(hosts) > 1 else (),
        all_hosts=len(hosts),
        no_timeline=no_timeline,
    )
    source = shown_path(diagnosis.source)
    data = FigureData(
        about="ranks",
        source=source,
        title=f"ranks of {source}",
        verdict=diagnosis.verdict,
        per="step",
        wall_ns=diagnosis.wall_ns,
        facts=tuple(_facts(found)),
        bars=tuple(_bars(diagnosis)),
        findings=tuple(_findings(diagnosis)),
        ranks=ranks,
        timeline=timeline,
        tables=tuple(table for table in (_opening(found), _each_rank(diagnosis)) if table.rows),
        missing=tuple(notes_of(diagnosis.missing)[:_NOTES]),
    )
    return msgspec.convert(cleaned(msgspec.to_builtins(data, builtin_types=(bytes,))), FigureData)


def _facts(found: DiagnosedRanks) -> Iterator[Fact]:
    diagnosis = found.diagnosis
    yield Fact("compared", what_was_compared(diagnosis))
    if diagnosis.wall_ns is not None:
        yield Fact("step", ms(diagnosis.wall_ns))
    if diagnosis.clocks:
        yield Fact("clocks", how_clocks_agree(diagnosis))
    yield Fact("next", next_step(found))


def _bars(diagnosis: RanksDiagnosis) -> Iterator[Bar]:
    """The mean rank's step: its own time, waiting for later ranks, and transfers."""
    if diagnosis.wall_ns is None or diagnosis.waiting_ns is None:
        return
    transfer = diagnosis.transfer_ns or 0
    own = max(0, diagnosis.wall_ns - diagnosis.waiting_ns - transfer)
    parts = (
        Part("own time", own, "compute"),
        Part("waiting for later ranks", diagnosis.waiting_ns, "data"),
        Part("transfer", transfer, "communication"),
    )
    yield Bar(title="a step, mean of the ranks", total_ns=diagnosis.wall_ns, parts=tuple(p for p in parts if p.ns))


def _findings(diagnosis: RanksDiagnosis) -> Iterator[FindingFigure]:
    wall_ns = diagnosis.wall_ns or 1
    step = StepBudget(wall_ns=wall_ns, per="step", source=diagnosis.source, on_device=True)
    for finding in diagnosis.findings:
        share = finding.saving_ns / wall_ns
        yield FindingFigure(
            rule=who(finding),
            severity=step.severity(finding.saving_ns),
            message=late_sentence(finding),
            advice=advice(finding) + ".",
            confidence="",  # what it saves is its cost, of which none is estimated
            place=", ".join(finding.hosts[:3]),
            cost_ns=finding.saving_ns,
            cost_share=share,
            evidence=(
                EvidenceFigure(name="late by", value=ms(finding.late_ns), source="median of those steps"),
                EvidenceFigure(name="in", value=when(finding), source=f"{diagnosis.steps:,} steps compared"),
                EvidenceFigure(
                    name="the job is slower by",
                    value=percent(finding.slowdown - 1, 1.0),
                    source="replay with its time made like the others'",
                ),
            ),
        )


def _hosts(ranks: tuple[RankLateness, ...]) -> list[HostFigure]:
    """Each host, those that are waited for longest first."""
    by_host: dict[str, list[RankLateness]] = {}
    for one in ranks:
        by_host.setdefault(one.host, []).append(one)
    found = []
    for host, of in by_host.items():
        longest = max(of, key=lambda one: one.own_ns)
        waiting = [one.waiting_ns for one in of if one.waiting_ns is not None]
        found.append(
            HostFigure(
                host=host or "unknown",
                ranks=len(of),
                own_ns=round(sum(one.own_ns for one in of) / len(of)),
                longest_ns=longest.own_ns,
                longest_rank=longest.rank,
                waiting_ns=round(sum(waiting) / len(waiting)) if waiting else None,
                given_ns=sum(one.given_ns for one in of),
            )
        )
    return sorted(found, key=lambda one: (-one.given_ns, -one.longest_ns))


def _lateness(of: LatenessMap) -> LatenessFigure:
    known = np.isfinite(of.late_ns)
    longest = float(of.late_ns[known].max()) if known.any() else 0.0
    unit = max(1, int(np.ceil(longest / _LEVELS)))
    cells = np.where(known, 1 + np.nan_to_num(of.late_ns) // unit, 0).astype(np.int64)
    first = of.ranks[:: of.ranks_per_row]
    return LatenessFigure(
        rows=cells.shape[0],
        columns=cells.shape[1],
        ranks_per_row=of.ranks_per_row,
        steps_per_column=of.steps_per_column,
        first_ranks=tuple(first.tolist()),
        last_rank=int(of.ranks[-1]),
        first_steps=tuple(of.steps[:: of.steps_per_column].tolist()),
        last_step=int(of.steps[-1]),
        unit_ns=unit,
        cells=packed(cells.reshape(-1)),
        latest=packed((of.latest - first[:, None]).reshape(-1)) if of.ranks_per_row > 1 else b"",
    )


def _opening(found: DiagnosedRanks) -> Table:
    own = {one.rank: one for one in found.diagnosis.ranks}
    opened = [one for one in worth_opening(found) if one.rank in own]
    recorded = any(one.trace is not None for one in opened)
    return Table(
        id="worth-opening",
        title="Ranks to look at side by side",
        note=""
        if recorded
        else "No trace of them was recorded: perfkit trigger RUN --all records a window on all ranks.",
        columns=(
            Column("rank"),
            Column("host"),
            Column("why"),
            Column("own time", "ns"),
            Column("waits", "ns"),
            *((Column("open with", "place"),) if recorded else ()),
        ),
        rows=tuple(
            (
                f"rank {one.rank}",
                own[one.rank].host,
                one.why,
                own[one.rank].own_ns,
                own[one.rank].waiting_ns,
                *((f"perfkit diagnose {shown_path(one.trace)}" if one.trace else None,) if recorded else ()),
            )
            for one in opened
        ),
    )


#: Rows of the table of ranks: 10,000 would be most of the page.
_RANKS = 500


def _each_rank(diagnosis: RanksDiagnosis) -> Table:
    longest = sorted(diagnosis.ranks, key=lambda one: -one.own_ns)[:_RANKS]
    left = len(diagnosis.ranks) - len(longest)
    return Table(
        id="ranks",
        title="Means per step",
        note=f"The {_RANKS} with the longest own time; {left:,} more are in --json." if left else "",
        columns=(
            Column("rank", "number"),
            Column("host"),
            Column("own time", "ns"),
            Column("waits", "ns"),
            Column("makes others wait", "ns"),
            Column("last in", "share"),
        ),
        rows=tuple((one.rank, one.host, one.own_ns, one.waiting_ns, one.given_ns, one.last_share) for one in longest),
    )
