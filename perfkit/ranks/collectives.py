"""The same collective on all ranks, and how much of its time each rank waited in it.

Collectives of one group with the same sequence number are one. Where a rank of the group has no numbers, those of equal
kind and size are counted within each step (without steps: over the whole recording) and matched in their order. A
collective ends on all ranks together, so the rank that comes last waits least: its duration is what the transfer takes,
and what another rank has beyond that it waited, as far as no kernels computed meanwhile. Only durations are used, each
on its rank's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from perfkit.ranks.rank_columns import RankColumns
from perfkit.trace.columns import CodeTable
from perfkit.trace.intervals import Codes, Ints

#: Collectives of one rank whose lists are shifted against another's: more are not tried, as that takes their square.
_MAX_SHIFTED = 4_000
#: A transfer is longer than usual from this multiple on: equal transfers differ by less on healthy links.
_LONGER = 1.3
_BETWEEN_TWO = ("send", "recv")


@dataclass(frozen=True, eq=False, kw_only=True)
class Meetings:
    """Collectives of all ranks, one row for each rank that took part, in the order of the meetings.

    Attributes:
        rank: Position of the rank among those that were read.
        group, kind: Codes into ``group_names`` and ``kind_names``.
        meeting: Number of the collective that the row belongs to, -1 for one that no other rank's was matched with.
        transfer_ns: The minimum duration in its meeting; unmatched: the minimum of its group, kind and size.
        waiting_ns: How long it was idle, beyond the least of its meeting: on the last rank kernels may compute during
            a transfer, which the others then wait for.
        extra_ns: What the transfer took beyond the median of its kind and size, in groups of about as many ranks; 0
            where it was not clearly longer.
        lost: A sentence for each kind of rows that were not matched.
    """

    rank: Codes
    group: Codes
    kind: Codes
    group_names: tuple[str, ...]
    kind_names: tuple[str, ...]
    bytes: Ints
    step: Ints
    start_ns: Ints
    end_ns: Ints
    meeting: Ints
    transfer_ns: Ints
    waiting_ns: Ints
    extra_ns: Ints
    lost: tuple[str, ...]


@dataclass(eq=False)
class CollectiveRows:
    """Collects the collectives of rank after rank."""

    groups: CodeTable = field(default_factory=CodeTable)
    kinds: CodeTable = field(default_factory=CodeTable)
    columns: list[tuple[Ints, ...]] = field(default_factory=list)

    def add(self, position: int, rank: RankColumns) -> None:
        """Keep those of a rank whose times are known; ``position`` is its number among those that are read."""
        if not rank.collective_step.size:
            return
        kept = np.flatnonzero((rank.collective_start_ns >= 0) & (rank.collective_end_ns >= rank.collective_start_ns))
        if not kept.size:
            return
        group = np.array([self.groups[name] for name in rank.group_names], np.int64)
        kind = np.array([self.kinds[name] for name in rank.kind_names], np.int64)
        self.columns.append(
            (
                np.full(kept.size, position, np.int64),
                group[rank.collective_group[kept]],
                kind[rank.collective_kind[kept]],
                rank.collective_sequence[kept],
                rank.collective_bytes[kept],
                rank.collective_step[kept],
                rank.collective_start_ns[kept],
                rank.collective_end_ns[kept],
                np.maximum(rank.collective_busy_ns[kept], 0),
            )
        )

    def renumber(self, position: Ints) -> None:
        """Give the ranks other numbers: ``position`` has the new one of each."""
        self.columns = [(position[rank], *rest) for rank, *rest in self.columns]
        self.columns.sort(key=lambda columns: int(columns[0][0]))

    def match(self) -> Meetings | None:
        """All that were added, matched over ranks; None without any."""
        if not self.columns:
            return None
        rank, group, kind, sequence, size, step, start, end, busy = (
            np.concatenate(column) for column in zip(*self.columns, strict=True)
        )
        self.columns.clear()
        signature = _codes(group, kind, size)
        numbered = np.ones(len(self.groups), bool)
        np.logical_and.at(numbered, group, sequence >= 0)
        by_number = numbered[group]
        key = np.empty(rank.size, np.int64)
        lost: list[str] = []
        if by_number.any():
            # What two ranks send each other is numbered apart from the collectives of their group.
            between_two = np.array([name in _BETWEEN_TWO for name in self.kinds])[kind]
            key[by_number] = _codes(group[by_number], between_two[by_number], sequence[by_number])
        if not by_number.all():
            rows = np.flatnonzero(~by_number)
            names = tuple(self.groups)
            ordered, lost = _by_order(rank[rows], group[rows], signature[rows], step[rows], names)
            key[rows] = np.where(ordered < 0, -1, ordered + rank.size)  # beyond all codes of numbers
        order = np.argsort(key, kind="stable")
        meeting = _meetings(key[order], rank[order])
        duration = (end - start)[order]
        idle = duration - busy[order]
        transfer, least = (_minimum(signature[order], each) for each in (duration, idle))
        matched = meeting >= 0
        for found, each in ((transfer, duration), (least, idle)):
            found[matched] = _minimum(meeting[matched], each[matched])
        if not matched.all():
            lost.append(f"{int((~matched).sum()):,} of {rank.size:,} collectives were found on one rank only")
        return Meetings(
            rank=rank[order].astype(np.int32),
            group=group[order].astype(np.int32),
            kind=kind[order].astype(np.int32),
            group_names=tuple(self.groups),
            kind_names=tuple(self.kinds),
            bytes=size[order],
            step=step[order],
            start_ns=start[order],
            end_ns=end[order],
            meeting=meeting,
            transfer_ns=transfer,
            waiting_ns=idle - least,
            extra_ns=_extra(_codes(kind[order], size[order]), meeting, transfer),
            lost=tuple(lost),
        )


def _codes(*columns: Ints) -> Ints:
    """One number for each distinct row of these columns, below the number of rows."""
    codes = np.zeros(columns[0].size, np.int64)
    for column in columns:
        if not column.size:
            break
        column = column.astype(np.int64)
        low, high = int(column.min()), int(column.max())
        span = high - low + 1
        values = column - low
        if span > column.size:
            values = np.unique(column, return_inverse=True)[1]
            span = int(values.max()) + 1
        codes = codes * span + values
        # Both factors are at most the number of rows, so that the product fits.
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def _minimum(code: Ints, values: Ints) -> Ints:
    """For each row, the minimum of the rows with its code."""
    if not code.size:
        return values
    least = np.full(int(code.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, code, values)
    return least[code]


def _extra(signature: Ints, meeting: Ints, transfer: Ints) -> Ints:
    """For each row, what its transfer took beyond the median of its signature in meetings of about as many ranks."""
    extra = np.zeros(meeting.size, np.int64)
    rows = np.flatnonzero(meeting >= 0)
    if not rows.size:
        return extra
    # Groups of equal size, mostly a power of two, may miss some ranks.
    members = np.ceil(np.log2(np.bincount(meeting[rows]))).astype(np.int64)
    each = rows[np.unique(meeting[rows], return_index=True)[1]]
    alike = _codes(signature[each], members)
    order = np.lexsort((transfer[each], alike))
    bounds = np.searchsorted(alike[order], np.arange(int(alike.max()) + 2))
    usual = transfer[each][order[(bounds[:-1] + bounds[1:] - 1) // 2]][alike]
    beyond = np.where(transfer[each] > _LONGER * usual, transfer[each] - usual, 0)
    extra[rows] = beyond[meeting[rows]]
    return extra


def _runs(*columns: Ints) -> Ints:
    """The position of each row among those that equal it in these columns."""
    code = _codes(*columns)
    order = np.argsort(code, kind="stable")
    in_order = code[order]
    begins = np.flatnonzero(np.diff(in_order, prepend=in_order[0] - 1))
    position = np.empty(code.size, np.int64)
    position[order] = np.arange(code.size) - np.repeat(begins, np.diff(np.append(begins, code.size)))
    return position


def _meetings(key: Ints, rank: Ints) -> Ints:
    """The meeting of each row by its sorted key: -1 where one rank is alone, or there twice."""
    begins = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    counts = np.diff(np.append(begins, key.size))
    meeting = np.repeat(np.arange(begins.size), counts)
    twice = np.zeros(begins.size, bool)
    same = (meeting[1:] == meeting[:-1]) & (rank[1:] == rank[:-1])
    twice[meeting[1:][same]] = True
    usable = (counts > 1) & ~twice & (key[begins] >= 0)
    return np.where(usable, np.cumsum(usable) - 1, -1)[meeting]


def _by_order(rank: Ints, group: Ints, signature: Ints, step: Ints, names: tuple[str, ...]) -> tuple[Ints, list[str]]:
    """A key for each row without a sequence number, -1 for none, and what could not be matched."""
    lost = []
    position = _runs(rank, signature, np.maximum(step, -1))
    unsure = np.zeros(rank.size, bool)
    stepped = step >= 0
    # In a step that one rank recorded in part, the n-th of a kind may be another one.
    of_step = _codes(group, step)
    here = _codes(of_step, signature)
    present = _codes(of_step, rank)
    ranks_of_step = np.bincount(of_step[np.unique(present, return_index=True)[1]])
    each = np.bincount(here)
    most = np.zeros(each.size, np.int64)
    np.maximum.at(most, here, position + 1)
    uneven = (each[here] != most[here] * ranks_of_step[of_step]) & stepped
    if uneven.any():
        steps = np.unique(step[uneven]).size
        lost.append(f"in {steps:,} step(s) ranks recorded different numbers of a collective, which were not matched")
        unsure |= uneven
    for code in np.unique(group[~stepped]).tolist():
        rows = np.flatnonzero(~stepped & (group == code))
        failed = _shift(rank[rows], signature[rows], position, rows)
        if failed.size:
            unsure[failed] = True
            lost.append(
                f"ranks recorded different stretches of group {names[code]} without step marks or sequence numbers, "
                "and which collectives are the same cannot be told"
            )
    return np.where(unsure, -1, _codes(signature, step, position)), lost


def _shift(rank: Ints, signature: Ints, position: Ints, rows: Ints) -> Ints:
    """Count the rows of each rank from where the longest list begins; returns those that fit it nowhere, or twice."""
    bounds = np.flatnonzero(np.diff(rank, prepend=rank[0] - 1, append=rank[-1] + 1))
    lists = [np.arange(low, high) for low, high in pairwise(bounds.tolist())]
    longest = max(lists, key=len)
    failed = [np.empty(0, np.int64)]
    for one in lists:
        position[rows[one]] = np.arange(one.size)
        if np.array_equal(signature[one], signature[longest]):
            continue
        shifts = _fitting(signature[longest], signature[one]) if longest.size <= _MAX_SHIFTED else []
        if len(shifts) == 1:
            position[rows[one]] += shifts[0]
        else:
            failed.append(rows[one])
    return np.concatenate(failed)


def _fitting(first: Ints, other: Ints) -> list[int]:
    """Shifts at which the two lists agree wherever both are, over at least half of the shorter one."""
    found = []
    for shift in range(1 - other.size, first.size):
        low, high = max(0, shift), min(first.size, shift + other.size)
        enough = 2 * (high - low) >= min(first.size, other.size)
        if enough and np.array_equal(first[low:high], other[low - shift : high - shift]):
            found.append(shift)
    return found
