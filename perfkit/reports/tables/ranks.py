"""A row per rank of a run, also for a rank without files."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables._table import Cell
from perfkit.run.reading import RankFolder

#: Ranks whose rows are read: each is a file.
_RANKS = 256


def _rows(source: TableSource) -> Iterator[tuple[Cell, ...]]:
    run = source.run
    if run is None:
        return
    shown = list(run.ranks.items())[:_RANKS]
    yield from (_rank(index, rank) for index, rank in shown)
    for index in run.missing_ranks[: _RANKS - len(shown)]:
        yield (index, *[None] * 5, "no files in the folder")


def _rank(index: int, rank: RankFolder) -> tuple[Cell, ...]:
    step, facts = measure_typical_step(rank.steps), rank.rank
    return (
        index,
        facts.host if facts is not None else None,
        facts.steps if facts is not None else sum(row.steps for row in rank.steps),
        step.wall_ns if step is not None else None,
        step.p90_ns if step is not None else None,
        step.phases_ns.data if step is not None else None,
        (facts.ending or "still running, or killed") if facts is not None else "rank.json is missing or damaged",
    )


def _note(source: TableSource) -> str:
    note = "One row per rank; no rank waits for another while training."
    rest = len(source.run.ranks) + len(source.run.missing_ranks) - _RANKS if source.run is not None else 0
    return f"{note} {rest:,} more are not listed." if rest > 0 else note


TABLE = TableDefinition(
    name="ranks",
    title="Ranks",
    needs="ranks are listed of a run folder: `perfkit run`, or perfkit.profile",
    rows=_rows,
    note=_note,
    fields=(
        TableField("rank", "count", itemgetter(0)),
        TableField("host", "text", itemgetter(1)),
        TableField("steps", "count", itemgetter(2)),
        TableField("mean step", "ns", itemgetter(3)),
        TableField("p90", "ns", itemgetter(4)),
        TableField("waiting for data", "ns", itemgetter(5)),
        TableField("ended", "text", itemgetter(6)),
    ),
)
