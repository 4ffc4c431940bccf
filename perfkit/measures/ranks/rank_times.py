"""The ranks of a run compared: which one the others wait for, and whether its share of the data is larger.

All ranks end a step together, since each waits for the others in the backward, so their steps are equally long. What
differs is what a rank does before it waits: its own time. It is counted in the phases in which no rank waits for
another (the backward, the optimizer and time outside the phases may contain a collective).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.measures.steps._timed_rows import timed_rows
from perfkit.run.records import PHASES, LineRow, Lines, Phase, Phases, Rank, Step

#: Phases in which a rank does its own work.
OWN: tuple[Phase, ...] = ("data", "transfer", "forward", "validation", "callbacks", "logging", "checkpoint")
#: Minimum of steps for a comparison: with fewer the sign of a difference is a matter of chance (0.5 ** 8 < 1 %).
_MIN_STEPS = 8
#: Maximum of steps that are compared one by one, the newest ones: noise evens out long before.
_MAX_STEPS = 2_000


class _RankSteps(NamedTuple):
    """One rank: its newest ordinary steps, and the steps in which something was recorded.

    ``columns`` has three rows, with a number for each of ``step``: own time, wall time (both in ns), size of the data.
    """

    rank: int
    step: np.ndarray
    columns: np.ndarray
    disturbed: frozenset[int]
    phases_ns: Phases
    line: LineRow | None
    facts: Rank | None


def measure_rank_times(ranks: Iterable[tuple[int, Sequence[Step], Lines | None, Rank | None]]) -> Ranks | None:
    """Compare ranks over the steps that were ordinary ones on all of them; None with fewer than two.

    Args:
        ranks: Number, rows, lines and rank.json of each. They are read one after the other, and only some numbers of
            the rows are kept.
    """
    tables = [table for each in ranks if (table := _table(*each)) is not None]
    if len(tables) < 2:
        return None
    common = tables[0].step
    for table in tables:
        # While one rank records a window all others wait for it.
        common = np.setdiff1d(np.intersect1d(common, table.step), np.array(sorted(table.disturbed), np.int64))
    if common.size < _MIN_STEPS:
        return None
    own, wall, size = np.stack([one.columns[:, np.searchsorted(one.step, common)] for one in tables], axis=1)
    slowest = own.argmax(axis=0)
    shares = [float((slowest == index).mean()) for index in range(len(tables))]
    return Ranks(
        steps=int(common.size),
        wall_ns=round(float(wall.mean(axis=1).mean())),
        waiting_ns=round(float((own.max(axis=0) - own.mean(axis=0)).mean())),
        follows_size=_correlation(own, size),
        ranks=tuple(
            RankSummary(
                rank=table.rank,
                own_ns=round(float(own[index].mean())),
                phases_ns=table.phases_ns,
                slowest_share=shares[index],
                size_per_step=float(size[index].mean()) if np.isfinite(size[index]).all() else None,
                cpu_ns=table.facts.cpu_ns_per_step if table.facts is not None else None,
                line=table.line,
                host=table.facts.host if table.facts is not None else None,
                node=table.facts.node if table.facts is not None and index == shares.index(max(shares)) else None,
            )
            for index, table in enumerate(tables)
        ),
    )


def _table(rank: int, rows: Sequence[Step], lines: Lines | None, facts: Rank | None) -> _RankSteps | None:
    timed = [row for row in timed_rows(rows)[0] if row.steps == 1][-_MAX_STEPS:]
    timed.sort(key=lambda row: row.step)
    if not timed:
        return None
    first = timed[0].step
    disturbed = (row.step for row in rows if row.step >= first and row.kind != "timed")
    return _RankSteps(
        rank=rank,
        step=np.array([row.step for row in timed], np.int64),
        columns=np.array([(own_ns(row.phases_ns), row.wall_ns, _size(row)) for row in timed], float).T,
        disturbed=frozenset(disturbed),
        phases_ns=_mean_phases([row.phases_ns for row in timed]),
        line=_hottest(lines),
        facts=facts,
    )


def own_ns(phases: Phases) -> int:
    """The time of a step in which a rank works by itself."""
    return sum(getattr(phases, name) or 0 for name in OWN)


def _size(row: Step) -> float:
    """How much data a step had: tokens where they are known, else the size of its batch, else its samples."""
    known = (size for size in (row.tokens, row.batch_elements, row.samples) if size is not None)
    return float(next(known, float("nan")))


def _mean_phases(all_: Sequence[Phases]) -> Phases:
    def mean(name: Phase) -> int | None:
        known = [ns for phases in all_ if (ns := getattr(phases, name)) is not None]
        return round(sum(known) / len(all_)) if known else None

    return Phases(**{name: mean(name) for name in PHASES})


def _correlation(own: np.ndarray, size: np.ndarray) -> float | None:
    """How far a rank's time beyond the others' in a step follows its data beyond theirs, -1 to 1."""
    if not np.isfinite(size).all():
        return None
    times = (own - own.mean(axis=0)).ravel()
    sizes = (size - size.mean(axis=0)).ravel()
    if not times.std() or not sizes.std():
        return None
    return float(np.corrcoef(times, sizes)[0, 1])


def _hottest(lines: Lines | None) -> LineRow | None:
    """The user's line with most samples while a rank works by itself."""
    # A forward pass counts as "other" until its backward starts.
    phases = (*OWN, "other")
    rows = [row for row in lines.rows if row.phase in phases and row.owner == "user"] if lines is not None else []
    rows = [row for row in rows if row.worker is None]
    return max(rows, key=lambda row: row.samples, default=None)
