"""Events inside events: which one is open at a time, and what an event and all it contains add up to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from perfkit.measures.rows import DEEP
from perfkit.trace.columns import Codes, Trace
from perfkit.trace.intervals import Ints
from perfkit.trace.nesting import find_innermost, overlap


def sum_inside(own: Ints, parent: Ints) -> Ints:
    """For each event the sum of its own value and those of all events below it.

    ``parent`` holds the index of the event around each, -1 for none.
    """
    total = own.copy()
    at = np.flatnonzero(own)
    value = own[at]
    for _ in range(DEEP):
        at = parent[at]
        inside = at >= 0
        if not inside.any():
            return total
        at, value = at[inside], value[inside]
        np.add.at(total, at, value)
    return total + _sum_below(sum_by(at, value, own.size), parent) - sum_by(at, value, own.size)


def _sum_below(own: Ints, parent: Ints) -> Ints:
    """`sum_inside` at a cost that no depth multiplies."""
    total = own.copy()
    above = parent.copy()
    open_ = np.flatnonzero(above >= 0)
    while open_.size:
        # After k rounds an event holds the sum of all within 2**k - 1 levels below it, and passes just that on
        # to the one 2**k above.
        np.add.at(total, above[open_], total[open_])
        above[open_] = above[above[open_]]
        open_ = open_[above[open_] >= 0]
    return total


def sum_by(place: Ints, values: Ints, size: int) -> Ints:
    """Exact sums of the values by place, 0 to ``size`` - 1."""
    total = np.zeros(size, np.int64)
    np.add.at(total, place, values)
    return total


def groups(codes: Ints | Codes) -> Iterator[tuple[int, Ints]]:
    """Each code with the positions where it stands, in order; one sort, however many codes there are."""
    order = np.argsort(codes, kind="stable")
    values, first = np.unique(codes[order], return_index=True)
    bounds = [*first.tolist(), order.size]
    for value, (low, high) in zip(values.tolist(), pairwise(bounds), strict=True):
        yield value, order[low:high]


def times_by_owner(trace: Trace, rows: Ints, parent: Ints) -> Ints:
    """How long each of these rows was the innermost one of them on its thread, in ns.

    ``parent`` is the place in ``rows`` of the one that contains each, -1 for none.
    """
    start, length = trace.start_ns[rows], (trace.end_ns - trace.start_ns)[rows]
    siblings = np.where(parent >= 0, parent, -1 - trace.track[rows])
    order = np.lexsort((start, siblings))
    ends = (start + length)[order]
    if not ((siblings[order[1:]] == siblings[order[:-1]]) & (ends[:-1] > start[order[1:]])).any():
        inner = parent >= 0
        return np.asarray(length - sum_by(parent[inner], length[inner], rows.size), np.int64)
    # Events of one thread cross, as float times make them: time belongs to the open one that began last.
    own = np.zeros(rows.size, np.int64)
    for _, mine in groups(trace.track[rows]):
        segments = find_innermost(trace.start_ns[rows[mine]], trace.end_ns[rows[mine]])
        np.add.at(own, mine[segments.owner], segments.ends - segments.starts)
    return own


def find_open(trace: Trace, rows: Ints, track: Ints | Codes, times: Ints) -> Ints:
    """The innermost of these rows that is open on each track at each time; -1 for none."""
    found = np.full(times.size, -1, np.int64)
    of_track = {code: rows[mine] for code, mine in groups(trace.track[rows])}
    for code, asked in groups(track):
        theirs = of_track.get(code)
        if theirs is not None:
            segments = find_innermost(trace.start_ns[theirs], trace.end_ns[theirs])
            which, owner, _, _ = overlap(segments, times[asked], times[asked] + 1)
            found[asked[which]] = theirs[owner]
    return found
