"""The ranks of a run compared: which one the others wait for, and whether its share of the data is larger.

All ranks end a step together, since each waits for the others where gradients are summed, so their steps are equally
long. The rank that comes last is the one that waits least. Where every rank knows how long it was blocked in
collectives, that decides, and the rest of a step is its own time. Elsewhere (NCCL's collectives do not block the host)
its own time is that of the phases in which no rank waits for another: the backward, the optimizer and time outside the
phases may contain a collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.measures.steps._timed_rows import timed_rows, work_column
from perfkit.run.records import PHASES, LineRow, Lines, Phase, Phases, Rank, Step

#: Phases in which a rank does its own work, also where its waits are not known.
OWN: tuple[Phase, ...] = ("data", "transfer", "forward", "validation", "callbacks", "logging", "checkpoint")
#: Minimum of steps for a comparison: with fewer the sign of a difference is a matter of chance (0.5 ** 8 < 1 %).
_MIN_STEPS = 8
#: Maximum of steps that are compared one by one, the newest ones: noise evens out long before.
_MAX_STEPS = 2_000
#: The share of the step from which on waiting in it counts: what rules report at least (`NEGLIGIBLE`).
_NOTABLE = 0.05


class _RankSteps(NamedTuple):
    """One rank: its newest ordinary steps, and the steps in which something was recorded.

    ``columns`` has four rows, with a number for each of ``step``: time in the phases of its own, wall time and time
    blocked in collectives (in ns), size of the data; not a number where unknown. ``phases_ns`` and ``own_phases_ns``
    are means with and without the waits, and ``wall_ns`` is the mean of all its ordinary steps, as in rank.json.
    """

    rank: int
    step: np.ndarray
    wall_ns: float
    columns: np.ndarray
    disturbed: frozenset[int]
    phases_ns: Phases
    own_phases_ns: Phases
    gc_ns: int | None
    lines: Lines | None
    facts: Rank | None


class _Comparison(NamedTuple):
    """What single steps show: arrays of shape (ranks, steps), and of (steps).

    ``beyond`` is how long the mean rank waits for the ``last`` one, ``ahead`` how long the last of the others does.
    Both are no longer than in the eighth longest step: one that comes once (another program, a file system) does not
    decide over a run.
    """

    own: np.ndarray
    wall: np.ndarray
    waited: np.ndarray | None
    size: np.ndarray
    last: np.ndarray
    beyond: np.ndarray
    ahead: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray) -> _Comparison:
        """Compare ``columns`` of shape (4, ranks, steps)."""
        own, wall, waited, size = columns
        known = np.isfinite(waited).all(axis=0)
        if known.sum() >= _MIN_STEPS:
            wall, waited, size = wall[:, known], waited[:, known], size[:, known]
            own, lead, waits = wall - waited, -waited, waited
        else:
            lead, waits = own, None
        ordered = np.sort(lead, axis=0)
        beyond, ahead = ordered[-1] - lead.mean(axis=0), ordered[-1] - ordered[-2]
        beyond, ahead = (np.minimum(each, np.sort(each)[-_MIN_STEPS]) for each in (beyond, ahead))
        return cls(own, wall, waits, size, lead.argmax(axis=0), beyond, ahead)

    def mean_of(self, steps: np.ndarray, rank: int) -> float:
        """The mean over all steps of a time that counts only in those in which this rank came last."""
        return float(np.where(self.last == rank, steps, 0).mean())


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
    found = _Comparison.of(np.stack([one.columns[:, np.searchsorted(one.step, common)] for one in tables], axis=1))
    caused = [found.mean_of(found.beyond, at) for at in range(len(tables))]
    worst = caused.index(max(caused))
    waited = found.waited
    return Ranks(
        steps=int(found.own.shape[1]),
        wall_ns=round(float(found.wall.mean())),
        waiting_ns=round(float(found.beyond.mean())),
        blocked_ns=round(float(waited.mean())) if waited is not None else None,
        transfer_ns=round(float(waited.min(axis=0).mean())) if waited is not None else None,
        follows_size=_correlation(found.own, found.size),
        ranks=tuple(_summary(table, found, at, details=at == worst) for at, table in enumerate(tables)),
    )


def _summary(table: _RankSteps, found: _Comparison, at: int, *, details: bool) -> RankSummary:
    facts, lines, size = table.facts, table.lines, found.size[at]
    notable = found.beyond >= _NOTABLE * found.wall.mean()
    waiting = float(found.beyond.mean())
    collected = max(lines.collected, key=lambda row: row.total_ns, default=None) if lines is not None else None
    return RankSummary(
        rank=table.rank,
        own_ns=round(float(found.own[at].mean())),
        phases_ns=table.phases_ns if found.waited is None else table.own_phases_ns,
        caused_share=found.mean_of(found.beyond, at) / waiting if waiting else 0.0,
        late_steps=int((notable & (found.last == at)).sum()),
        late_ns=round(found.mean_of(found.ahead, at)),
        waited_ns=round(float(found.waited[at].mean())) if found.waited is not None else None,
        gc_ns=table.gc_ns,
        size_per_step=float(size.mean()) if np.isfinite(size).all() else None,
        cpu_ns=facts.cpu_ns_per_step if facts is not None else None,
        thread_ns=facts.thread_ns_per_step if facts is not None else None,
        core_wait_ns=_without_core(table, found, at),
        line=next(iter(_users(lines, *OWN, "other")), None),
        lines=_by_phase(lines) if details else {},
        collected=collected.at if details and collected is not None else None,
        host=facts.host if facts is not None else None,
        node=facts.node if facts is not None and details else None,
    )


def _without_core(table: _RankSteps, found: _Comparison, at: int) -> int | None:
    """How long the thread had no core in a step.

    It also waits for one when a collective is over, which is not its own time, and more often in steps in which another
    rank was recorded: what it did not run of the compared steps is the limit.
    """
    facts = table.facts
    if facts is None or facts.core_wait_share is None:
        return None
    whole = (found.own if found.waited is not None else found.wall)[at].mean()
    limit = max(0.0, float(whole) - (facts.thread_ns_per_step or 0))
    return round(min(facts.core_wait_share * table.wall_ns, limit))


def _table(rank: int, rows: Sequence[Step], lines: Lines | None, facts: Rank | None) -> _RankSteps | None:
    timed = [row for row in timed_rows(rows)[0] if row.steps == 1][-_MAX_STEPS:]
    timed.sort(key=lambda row: row.step)
    if not timed:
        return None
    first = timed[0].step
    disturbed = (row.step for row in rows if row.step >= first and row.kind != "timed")
    sizes = map(_known, work_column(timed))
    numbers = [
        (_own_ns(row.phases_ns), row.wall_ns, _known(row.waited_ns), size)
        for row, size in zip(timed, sizes, strict=True)
    ]
    collected = [row.gc_ns for row in timed if row.gc_ns is not None]
    return _RankSteps(
        rank=rank,
        step=np.array([row.step for row in timed], np.int64),
        wall_ns=float(np.mean([row.wall_ns for row in timed])),
        columns=np.array(numbers, float).T,
        disturbed=frozenset(disturbed),
        phases_ns=_mean_phases(timed, own=False),
        own_phases_ns=_mean_phases([row for row in timed if row.waited_phases_ns is not None], own=True),
        gc_ns=round(sum(collected) / len(collected)) if collected else None,
        lines=lines,
        facts=facts,
    )


def _own_ns(phases: Phases) -> int:
    """The time of a step in phases in which a rank works by itself."""
    return sum(getattr(phases, name) or 0 for name in OWN)


def _known(number: int | None) -> float:
    return float("nan") if number is None else float(number)


def _mean_phases(rows: Sequence[Step], *, own: bool) -> Phases:
    """The mean of each phase, without the waits in it if ``own``."""

    def mean(name: Phase) -> int | None:
        known = [(ns, row) for row in rows if (ns := getattr(row.phases_ns, name)) is not None]
        waited = sum(getattr(row.waited_phases_ns, name) or 0 for _, row in known) if own else 0
        return round((sum(ns for ns, _ in known) - waited) / len(rows)) if known else None

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


def _users(lines: Lines | None, *phases: Phase) -> list[LineRow]:
    """The user's lines that were sampled in these phases, most samples first."""
    rows = lines.rows if lines is not None else ()
    chosen = [row for row in rows if row.phase in phases and row.owner == "user" and row.worker is None]
    return sorted(chosen, key=lambda row: -row.samples)


def _by_phase(lines: Lines | None) -> dict[Phase, LineRow]:
    """The user's line with most samples in each phase."""
    # A forward pass counts as "other" until its backward starts.
    wanted: dict[Phase, tuple[Phase, ...]] = {phase: (phase,) for phase in PHASES} | {"forward": ("forward", "other")}
    return {phase: rows[0] for phase, alike in wanted.items() if (rows := _users(lines, *alike))}
