"""The steps of one rank, and its own time in each (`perfkit.ranks.step_times` says what that is)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from perfkit.measures.ranks.rank_times import OWN
from perfkit.ranks._rank_statistics import Matrix
from perfkit.ranks.collectives import Meetings
from perfkit.ranks.rank_columns import RankColumns
from perfkit.trace.intervals import Ints

OwnTimeFrom = Literal["waited", "collectives", "phases"]
Part = Literal["data", "computing", "host", "validation", "checkpoint", "link", "gc", "work"]

#: What own time consists of. "computing" is forward, backward and optimizer, with kernels theirs; "link" is what
#: transfers take beyond their usual time; "host" is the rest.
PARTS: tuple[Part, ...] = ("data", "computing", "host", "validation", "checkpoint", "link")
#: What lies in the others, and how much data a step had.
ROWS: tuple[Part, ...] = (*PARTS, "gc", "work")
#: Phases by part: those before a step's collectives, and those after.
_BEFORE = {"data": 0, "transfer": 0, "forward": 1, "backward": 1}
_AFTER = {"optimizer": 1, "callbacks": 2, "logging": 2, "other": 2, "validation": 3, "checkpoint": 4}
#: A source of own time counts for a rank if it covers this share of its steps.
ENOUGH = 0.5


class KernelMeans(NamedTuple):
    """Kernels of one rank by class, per step."""

    ns: dict[str, float]
    launches: dict[str, float]


@dataclass(eq=False)
class OneRank:
    """What is kept of a rank; [steps] each."""

    rank: int
    host: str
    number: Ints
    wall: Matrix
    waited: Matrix  # NaN: not measured
    parts: Matrix  # [len(ROWS), n]; gc and work are NaN where they were not measured
    phase: Matrix | None  # own time by phases alone, where waiting was not measured
    kernels: KernelMeans | None
    own: Matrix | None = None


def steps_of_rank(columns: RankColumns, number: Ints) -> OneRank:
    """What is compared of the steps of a rank, whose numbers are given so that ranks share them."""
    n = number.size
    phases = columns.phases_ns.astype(np.float32)
    known = phases >= 0
    sums = np.where(known, phases, 0) @ _weights(columns.phase_names)
    before, after, phase = sums[:, :5], sums[:, 5:10], sums[:, 10]
    # The phases after the collectives of a step come before those of the next.
    after[1:] = np.where(np.diff(number)[:, None] == 1, after[:-1], after[1:])
    waited = columns.waited_ns.astype(np.float32)
    parts = np.zeros((len(ROWS), n), np.float32)
    parts[:5] = (before + after).T
    parts[ROWS.index("gc")], parts[ROWS.index("work")] = columns.gc_ns, columns.work
    for measured in (waited, parts[len(PARTS) :]):
        measured[measured < 0] = np.nan
    alone = [i for i, name in enumerate(columns.phase_names) if name in OWN]
    kernels = None
    if columns.kernel_classes and n:
        ns, count = columns.kernel_ns.mean(axis=0), columns.kernel_count.mean(axis=0)
        kernels = KernelMeans(
            dict(zip(columns.kernel_classes, ns.tolist(), strict=True)),
            dict(zip(columns.kernel_classes, count.tolist(), strict=True)),
        )
    wall = columns.step_wall_ns.astype(np.float32)
    by_phases = phase.copy() if known[:, alone].any() else None
    found = OneRank(columns.rank, columns.host, number, wall, waited, parts, by_phases, kernels)
    if columns.kernel_classes:
        computes = [i for i, name in enumerate(columns.kernel_classes) if name != "communication"]
        # The device's work says what computing took, where the phases are those of the host.
        parts[1] = np.maximum(columns.kernel_ns[:, computes], 0).sum(axis=1)
    return found


@lru_cache(maxsize=64)
def _weights(names: tuple[str, ...]) -> Matrix:
    """What sums phases of these names to the parts before the collectives, to those after them, and to own time."""
    weights = np.zeros((len(names), 11), np.float32)
    for index, name in enumerate(names):
        if name in _BEFORE:
            weights[index, _BEFORE[name]] = 1
        if name in _AFTER:
            weights[index, 5 + _AFTER[name]] = 1
        weights[index, 10] = name in OWN
    return weights


def set_own_time(one: OneRank, source: OwnTimeFrom) -> bool:
    """Set a rank's own time as known from ``source``; False where it is not."""
    if source == "waited":
        if one.own is None and np.isfinite(one.waited).any():
            _from_waited(one)
        else:
            one.own = None
    elif source == "phases":
        one.own = one.phase
        if one.phase is not None:
            one.parts[1] = one.phase - one.parts[[0, 2, 3, 4]].sum(axis=0)
    return one.own is not None


def _from_waited(one: OneRank) -> None:
    parts, waited = one.parts, one.waited
    total = parts[:5].sum(axis=0)
    # Blocked in the backward, and in what else stands for communication only if that is too short for it.
    rest = np.where(np.isfinite(waited), waited, 0)
    for row in (1, 2, 0, 3, 4):
        if not rest.any():
            break
        taken = np.minimum(rest, parts[row])
        parts[row] -= taken
        rest = rest - taken
    one.own = np.where(total > 0, parts[:5].sum(axis=0), one.wall - waited)
    one.own[~np.isfinite(waited)] = np.nan


def set_own_time_from(one: OneRank, meetings: Meetings, rows: Ints, waiting: Ints) -> None:
    """Set a rank's own time as known from its collectives: ``rows`` of ``meetings``, with what it waited in each."""
    n = one.number.size
    if n < 2:
        return
    at = np.searchsorted(one.number, meetings.step[rows])
    inside = at < n
    inside[inside] = one.number[at[inside]] == meetings.step[rows][inside]
    rows, waiting, at = rows[inside], waiting[inside], at[inside]
    order = np.lexsort((meetings.end_ns[rows], at))
    rows, waiting, at = rows[order], waiting[order], at[order]
    last = np.flatnonzero(np.diff(at, append=n))  # the last collective of each step
    ends, transfer = np.full(n, -1), np.zeros(n, np.int64)
    ends[at[last]], transfer[at[last]] = meetings.end_ns[rows[last]], meetings.transfer_ns[rows[last]]
    counts = np.bincount(at, minlength=n)
    if at.size and counts[at[-1]] < np.median(counts[counts > 0]):
        ends[at[-1]] = -1  # the recording ends in the middle of this step
    follows = np.flatnonzero((np.diff(one.number) == 1) & (ends[1:] >= 0) & (ends[:-1] >= 0)) + 1
    if follows.size < ENOUGH * (n - 1):
        return
    stretch = np.full(n, np.nan, np.float32)
    stretch[follows] = ends[follows] - ends[follows - 1]
    kernels = one.parts[1] if one.kernels is not None else np.zeros(n, np.float32)
    exposed = np.maximum(stretch - kernels - transfer, 0)
    waited = np.minimum(np.bincount(at, weights=waiting, minlength=n), exposed).astype(np.float32)
    one.wall, one.waited, one.own = stretch, waited, stretch - waited
    if one.kernels is not None:
        one.parts[1] = np.minimum(one.parts[1], one.own)
    extra = np.bincount(at, weights=meetings.extra_ns[rows], minlength=n)
    one.parts[5] = np.minimum(extra, np.maximum(stretch - kernels - waited, 0))
    rest = one.own - one.parts[1]
    for row in (5, 0, 3, 4):
        one.parts[row] = np.minimum(one.parts[row], np.maximum(rest, 0))
        rest = rest - one.parts[row]
    if one.kernels is not None:
        one.parts[2] = np.maximum(rest, 0)
    else:  # without kernels the host computes, and what it does else is known only as far as phases show it
        one.parts[2] = np.minimum(one.parts[2], np.maximum(rest, 0))
        one.parts[1] = np.maximum(one.own - one.parts[[0, 2, 3, 4, 5]].sum(axis=0), 0)
