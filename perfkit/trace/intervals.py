"""Algebra of time intervals: unions, their parts, and the gaps between them.

Intervals are half-open ``[start, end)`` in integer ns, so every length is exact. A *union* is the pair
(starts, ends) of disjoint intervals in order that `union` returns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: Indices into a table of distinct values, such as names.
Codes = npt.NDArray[np.int32]


class Union(NamedTuple):
    """Disjoint intervals in order of time."""

    starts: Ints
    ends: Ints

    @property
    def length_ns(self) -> int:
        """Length of the covered time."""
        return int((self.ends - self.starts).sum())


def union(starts: Ints, ends: Ints) -> Union:
    """Merge intervals that overlap or touch. They may come in any order; empty intervals are dropped."""
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    if not starts.size:
        return Union(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    # The running maximum: a long interval may contain several that begin after it.
    reach = np.maximum.accumulate(ends[order])
    first = np.ones(starts.size, dtype=bool)
    first[1:] = starts[1:] > reach[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, starts.size - 1)
    return Union(starts[first], reach[last])


def clip(of: Union, low: int, high: int) -> Union:
    """The part of a union inside ``[low, high)``."""
    inside = (of.ends > low) & (of.starts < high)
    return Union(np.maximum(of.starts[inside], low), np.minimum(of.ends[inside], high))


def free(of: Union, low: int, high: int) -> Union:
    """The gaps of a union inside ``[low, high)``."""
    covered = clip(of, low, high)
    starts = np.concatenate((np.array([low], np.int64), covered.ends))
    ends = np.concatenate((covered.starts, np.array([high], np.int64)))
    kept = ends > starts
    return Union(starts[kept], ends[kept])


def joined(*parts: Union) -> Union:
    """The union of unions."""
    return union(np.concatenate([p.starts for p in parts]), np.concatenate([p.ends for p in parts]))


def common(one: Union, other: Union) -> Union:
    """The time that two unions share."""
    low = np.searchsorted(other.ends, one.starts, side="right")
    high = np.searchsorted(other.starts, one.ends, side="left")
    mine, theirs = expand(low, high)
    return Union(np.maximum(one.starts[mine], other.starts[theirs]), np.minimum(one.ends[mine], other.ends[theirs]))


def without(one: Union, other: Union) -> Union:
    """The part of a union outside another."""
    if not one.starts.size:
        return one
    return common(one, free(other, int(one.starts[0]), int(one.ends[-1])))


def covered_before(of: Union, times: Ints) -> Ints:
    """How much of a union is before each time."""
    if not of.starts.size:
        return np.zeros(times.shape, np.int64)
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(of.ends - of.starts)))
    begun = np.searchsorted(of.starts, times, side="right")
    overhang = np.maximum(of.ends[np.maximum(begun - 1, 0)] - times, 0)
    return np.asarray(total[begun] - np.where(begun > 0, overhang, 0), np.int64)


def expand(low: npt.NDArray[np.intp], high: npt.NDArray[np.intp]) -> tuple[Ints, Ints]:
    """All pairs (i, j) with ``low[i] <= j < high[i]``, as two flat arrays."""
    counts = np.maximum(high - low, 0)
    mine = np.repeat(np.arange(low.size), counts)
    offset = np.repeat(np.cumsum(counts) - counts, counts)
    return mine, np.arange(mine.size) - offset + low[mine]
