"""Figure data of a history: each workload's steps over its runs, its changes and objectives, and a table."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from perfkit._format import percent, relative_change, shown_path
from perfkit._text import cleaned
from perfkit.history.gathering import cause_of, day
from perfkit.history.objectives import METRICS
from perfkit.history.results import History, RunSummary, WorkloadHistory
from perfkit.reports.figures.data import Fact, FigureData
from perfkit.reports.figures.history_data import ChangeFigure, HeldFigure, LimitFigure, WorkloadFigure
from perfkit.reports.tables._table import Column, Table

#: Workloads that are drawn, and skipped runs that are listed: a person reads no more.
_WORKLOADS, _SKIPPED = 20, 100


def figures_of_history(history: History) -> FigureData:
    """Make figure data of a history, for the same pages that draw a diagnosis."""
    shown = history.workloads[:_WORKLOADS]
    runs = sum(len(workload.runs) for workload in history.workloads)
    source = shown_path(history.source)
    first = (
        shown[0].verdict if len(shown) == 1 else f"{len(history.workloads)} workloads; the newest: {shown[0].verdict}"
    )
    missing = [f"{shown_path(one.path)} was skipped: {one.reason}" for one in history.skipped]
    missing += [f"{shown_path(run.path)}: {note}" for workload in shown for run in workload.runs for note in run.notes]
    if len(history.workloads) > len(shown):
        missing.insert(0, f"{len(history.workloads) - len(shown)} older workloads are not drawn: --workload TEXT")
    data = FigureData(
        about="history",
        source=source,
        title=f"history of {source}",
        verdict=" ".join((first, *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in history.broken))),
        per="step",
        wall_ns=None,
        facts=(Fact("runs", f"{runs:,}"), Fact("workloads", str(len(history.workloads)))),
        history=tuple(_workload(workload) for workload in shown),
        tables=tuple(_table(workload, number) for number, workload in enumerate(shown)),
        missing=tuple(missing[:_SKIPPED]),
    )
    return msgspec.convert(cleaned(msgspec.to_builtins(data, builtin_types=(bytes,))), FigureData)


def _workload(workload: WorkloadHistory) -> WorkloadFigure:
    runs = workload.runs
    note = f"{workload.left_out:,} earlier runs were not read (--limit). " if workload.left_out else ""
    if workload.noise is not None and workload.visible is not None:
        note += (
            f"Medians of runs vary by {workload.noise:.1%}; three runs in a row would show a change of "
            f"{percent(workload.visible, 1)}."
        )
    return WorkloadFigure(
        name=workload.name,
        machine=workload.machine,
        verdict=workload.verdict,
        note=note,
        start=tuple(day(run.start_unix_ns) for run in runs),
        commit=tuple(_commit(run) for run in runs),
        folder=tuple(shown_path(run.path) for run in runs),
        median_ns=tuple(run.median_ns for run in runs),
        p10_ns=tuple(run.p10_ns for run in runs),
        p90_ns=tuple(run.p90_ns for run in runs),
        level_ns=tuple(_levels(workload)),
        changes=tuple(
            ChangeFigure(
                at=change.at,
                slower=change.share > 0,
                label=f"{relative_change(change.before_ns, change.after_ns)} {(change.commit or '')[:7]}".strip(),
                sentence=f"{day(change.start_unix_ns)}: {'slower' if change.share > 0 else 'faster'} "
                f"({100 * change.low:+.0f}% to {100 * change.high:+.0f}%), {cause_of(change)}.",
            )
            for change in workload.changes
        ),
        limits=tuple(
            LimitFigure(label=one.objective, ns=round(one.limit)) for one in workload.objectives if one.metric == "step"
        ),
        objectives=tuple(HeldFigure(met=one.met, sentence=one.sentence) for one in workload.objectives),
    )


def _levels(workload: WorkloadHistory) -> list[int | None]:
    """The level of each run, as its changes give it; without a change the median of all."""
    runs, changes = workload.runs, workload.changes
    if not changes:
        known = [run.median_ns for run in runs if run.median_ns is not None]
        level = round(statistics.median(known)) if known and workload.noise is not None else None
        return [level] * len(runs)
    levels: list[int | None] = [changes[0].before_ns] * len(runs)
    for change in changes:
        levels[change.at :] = [change.after_ns] * (len(runs) - change.at)
    return levels


def _commit(run: RunSummary) -> str:
    if run.commit is None:
        return ""
    return run.commit[:7] + (", files differed" if run.dirty else "" if run.dirty is False else ", not checked")


def _table(workload: WorkloadHistory, number: int) -> Table:
    columns: dict[Column, list[Any]] = {
        Column("run"): [shown_path(run.path) for run in workload.runs],
        Column("start"): [day(run.start_unix_ns) for run in workload.runs],
        Column("commit"): [_commit(run) or None for run in workload.runs],
        Column("median", "ns"): [run.median_ns for run in workload.runs],
        Column("p10", "ns"): [run.p10_ns for run in workload.runs],
        Column("p90", "ns"): [run.p90_ns for run in workload.runs],
        Column("main phase"): [run.main_phase[0] if run.main_phase else None for run in workload.runs],
        Column("steps", "count"): [run.steps for run in workload.runs],
        Column("memory", "bytes"): [run.memory_bytes for run in workload.runs],
        Column("syncs", "number"): [run.syncs_per_step for run in workload.runs],
        Column("J/step", "number"): [METRICS["energy"].value(run) for run in workload.runs],
        Column("first finding", "place"): [run.finding or None for run in workload.runs],
    }
    kept = {column: cells for column, cells in columns.items() if any(cell is not None for cell in cells)}
    return Table(
        id=f"history-{number}",
        title="Runs",
        columns=tuple(kept),
        rows=tuple(zip(*kept.values(), strict=True))[::-1],
        note="The newest first.",
    )
