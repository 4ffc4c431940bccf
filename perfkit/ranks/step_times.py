"""Each rank's own time in each step: what it did by itself, without waiting for others.

All ranks meet in the collectives of a step, so their steps are equally long, and a late rank shows in its own time
alone. It is known in three ways, the first of which holds:

- ``waited``: rows have the time blocked in collectives; own time is the rest.
- ``collectives``: a step lasts from the last collective of one step to that of the next. The waiting in them is no own
  time as far as the device was idle: what passes while kernels run costs nothing.
- ``phases``: the phases in which no rank waits for another. A rank that is slow in its backward is not seen.

What comes after the backward of a step delays the collectives of the next one: it is counted to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfkit.ranks._rank_statistics import Matrix, least_of, middle_of
from perfkit.ranks._rank_steps import (
    ENOUGH,
    ROWS,
    KernelMeans,
    OneRank,
    OwnTimeFrom,
    Part,
    set_own_time,
    set_own_time_from,
    steps_of_rank,
)
from perfkit.ranks.collectives import CollectiveRows, Meetings
from perfkit.ranks.rank_columns import RankColumns
from perfkit.trace.intervals import Ints

#: A step is compared if this share of the ranks has it: the rest were cut, or recorded other steps.
_COVERED = 0.5
#: All ranks are blocked for long if the one that waits least is, for this multiple of its usual time.
_JUMP = 2.0


@dataclass(frozen=True, eq=False, kw_only=True)
class StepTimes:
    """Own times [ranks, steps] in ns, NaN where a rank does not have a step.

    Attributes:
        world_size: The ranks of the job, also those that were not read.
        wall_ns: A step, mean of the steps and median of the ranks.
        source: How own time is known; ranks for which it is known in other ways only were left out.
        waited: float32[ranks, steps], blocked in collectives; None where it was not measured.
        transfer_ns: What communication takes without waiting per step, None where unknown.
        lost: A sentence for each thing that was left out.
    """

    ranks: Ints
    world_size: int
    hosts: tuple[str, ...]
    steps: Ints
    own: Matrix
    wall_ns: float
    source: OwnTimeFrom
    waited: Matrix | None
    transfer_ns: float | None
    kernels: tuple[KernelMeans | None, ...]
    lost: tuple[str, ...]
    _rows: Sequence[OneRank]
    _at: Sequence[Ints | None]
    _link: Matrix | None

    def part(self, part: Part) -> Matrix:
        """One part of own time (or gc, or work) [ranks, steps]; NaN where it is not known."""
        if part == "link" and self._link is not None:
            return np.broadcast_to(self._link, self.own.shape)
        row = ROWS.index(part)
        return _matrix([one.parts[row] for one in self._rows], self._at, self.steps.size)

    def parts_of(self, position: int) -> Matrix:
        """All of `ROWS` of one rank [len(ROWS), steps]."""
        return _matrix(self._rows[position].parts, [self._at[position]] * len(ROWS), self.steps.size)


class RankSteps:
    """Collects the steps and collectives of rank after rank."""

    def __init__(self) -> None:
        self.ranks: list[OneRank] = []
        self.collectives = CollectiveRows()
        self.world_size = 0
        self._numbers: Ints = np.empty(0, np.int64)

    def add(self, columns: RankColumns) -> None:
        """Keep what is compared of a rank; 28 bytes a step and 72 a collective."""
        self.collectives.add(len(self.ranks), columns)
        self.world_size = max(self.world_size, columns.world_size or 0, columns.rank + 1)
        number = columns.step_number
        if np.array_equal(number, self._numbers):
            number = self._numbers  # ranks with equal steps share them
        self._numbers = number
        self.ranks.append(steps_of_rank(columns, number))

    def sort(self) -> None:
        """Put the ranks in the order of their numbers, so that it does not matter in which they were read."""
        order = np.argsort([one.rank for one in self.ranks], kind="stable")
        self.ranks = [self.ranks[row] for row in order.tolist()]
        self.collectives.renumber(np.argsort(order))

    def times(self, meetings: Meetings | None) -> StepTimes | None:
        """Own times of the ranks in the steps that they have in common; None where there is none."""
        if meetings is not None:
            self._set_from_collectives(meetings)
        lost: list[str] = []
        source = self._source()
        kept = [one for one in self.ranks if set_own_time(one, source)]
        if len(kept) < len(self.ranks):
            left = [str(one.rank) for one in self.ranks if one.own is None]
            lost.append(f"rank(s) {_some(left)} could not be compared: their own time is not known ({source})")
        steps = _common_steps(kept)
        if len(kept) < 2 or not steps.size:
            return None
        at = _positions(kept, steps)
        own = _matrix([one.own for one in kept if one.own is not None], at, steps.size)
        waited = _matrix([one.waited for one in kept], at, steps.size) if source != "phases" else None
        wall = _matrix([one.wall for one in kept], at, steps.size)
        present = np.isfinite(own)
        shared = present.any(axis=0)
        if not shared.all():
            steps, own, wall = steps[shared], own[:, shared], wall[:, shared]
            waited = waited[:, shared] if waited is not None else None
            at = _positions(kept, steps)
        link = _slow_transfers(waited, own, self.world_size) if source == "waited" and waited is not None else None
        if link is not None:
            own += link
        return StepTimes(
            ranks=np.array([one.rank for one in kept]),
            world_size=self.world_size,
            hosts=tuple(one.host for one in kept),
            steps=steps,
            own=own,
            wall_ns=float(np.nanmedian(np.nanmean(wall, axis=1))),
            source=source,
            waited=waited,
            transfer_ns=_transfer(waited, meetings, steps),
            kernels=tuple(one.kernels for one in kept),
            lost=(*lost, *_uncommon(kept, steps)),
            _rows=kept,
            _at=at,
            _link=link,
        )

    def _source(self) -> OwnTimeFrom:
        known = sum(one.own is not None for one in self.ranks)
        rest = [one.waited for one in self.ranks if one.own is None and one.waited.size]
        waited = sum(bool(np.isfinite(one).mean() > ENOUGH) for one in rest)
        if 2 * waited >= len(self.ranks) and waited:
            return "waited"
        return "collectives" if known and 2 * known >= len(self.ranks) else "phases"

    def _set_from_collectives(self, meetings: Meetings) -> None:
        order = np.argsort(meetings.rank, kind="stable")
        bounds = np.searchsorted(meetings.rank[order], np.arange(len(self.ranks) + 1))
        waiting = meetings.waiting_ns
        for position, one in enumerate(self.ranks):
            rows = order[bounds[position] : bounds[position + 1]]
            if rows.size and not np.isfinite(one.waited).any():
                set_own_time_from(one, meetings, rows, waiting[rows])


def read_steps(ranks: Iterable[RankColumns]) -> RankSteps:
    """The steps and collectives of all ranks, which are read one after the other."""
    rows = RankSteps()
    for columns in ranks:
        rows.add(columns)
    rows.sort()
    return rows


def _common_steps(ranks: Sequence[OneRank]) -> Ints:
    """The steps that enough of the ranks have, in order."""
    counts: dict[int, int] = {}
    arrays: dict[int, Ints] = {}
    for one in ranks:
        counts[id(one.number)] = counts.get(id(one.number), 0) + 1
        arrays[id(one.number)] = one.number
    if not arrays:
        return np.empty(0, np.int64)
    union = np.unique(np.concatenate(list(arrays.values())))
    have = np.zeros(union.size, np.int64)
    for key, number in arrays.items():
        np.add.at(have, np.searchsorted(union, number), counts[key])
    return union[(have >= _COVERED * len(ranks)) & (have >= 2)]


def _positions(ranks: Sequence[OneRank], steps: Ints) -> list[Ints | None]:
    """For each rank the column of each of its steps, -1 for none; None where it has just these."""
    known: dict[int, Ints | None] = {}
    for one in ranks:
        if id(one.number) in known:
            continue
        if np.array_equal(one.number, steps):
            known[id(one.number)] = None
            continue
        at = np.minimum(np.searchsorted(steps, one.number), steps.size - 1)
        known[id(one.number)] = np.where(steps[at] == one.number, at, -1)
    return [known[id(one.number)] for one in ranks]


def _matrix(rows: Sequence[Matrix] | Matrix, at: Sequence[Ints | None], steps: int) -> Matrix:
    if all(columns is None for columns in at):
        return np.array(rows, np.float32)
    found = np.full((len(rows), steps), np.nan, np.float32)
    for position, (row, columns) in enumerate(zip(rows, at, strict=True)):
        if columns is None:
            found[position] = row
        else:
            kept = columns >= 0
            found[position, columns[kept]] = row[kept]
    return found


def _transfer(waited: Matrix | None, meetings: Meetings | None, steps: Ints) -> float | None:
    """What communication takes without waiting: the minimum over the ranks, mean of the steps."""
    if meetings is not None:
        inside = np.isin(meetings.step, steps)
        total = meetings.transfer_ns[inside].sum()
        shown = np.unique(meetings.step[inside]).size
        ranks = np.unique(meetings.rank[inside]).size
        return float(total) / shown / ranks if shown else None
    if waited is None:
        return None
    least = least_of(waited)
    return float(least[np.isfinite(least)].mean())


def _slow_transfers(waited: Matrix, own: Matrix, world_size: int) -> Matrix:
    """What communication takes in each step, on the rank that waits least, where it is far above its median."""
    least = least_of(waited)
    # Where ranks meet several times in a step, all wait in one that has two late ranks, each in another part of it.
    late = np.nanmax(own, axis=0) - middle_of(own)
    usual = np.median(least)
    beyond = least - usual - np.maximum(late - np.median(late), 0)
    # All that were read may wait for a rank that was not.
    complete = np.isfinite(waited).sum(axis=0) >= world_size
    return np.where(complete & (beyond > (_JUMP - 1) * usual), beyond, 0).astype(np.float32)


def _uncommon(ranks: Sequence[OneRank], steps: Ints) -> list[str]:
    short = [str(one.rank) for one in ranks if one.number.size < steps.size]
    more = sum(one.number.size > steps.size for one in ranks)
    if not short and not more:
        return []
    shown = f"steps {steps[0]} to {steps[-1]} ({steps.size:,}), which at least half of the ranks have, were compared"
    return [f"{shown}; rank(s) {_some(short)} do not have all of them" if short else shown]


def _some(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
