"""Events inside events: which one is open at a time, and sums over an event and all that it contains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from perfkit.measures._rows import DEEP
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Codes, Ints
from perfkit.trace.nesting import find_innermost, order_of_codes, overlap


def sum_inside(at: Ints, values: Ints, parent: Ints) -> Ints:
    """For each event the sum of the values at it and at all events below it.

    Args:
        at: Index of the event that each value belongs to.
        values: The values.
        parent: Index of the event around each event, -1 for none.
    """
    total = np.zeros(parent.size, np.int64)
    for _ in range(DEEP):
        if not at.size:
            return total
        np.add.at(total, at, values)
        at = parent[at]
        inside = at >= 0
        at, values = at[inside], values[inside]
    return total + _sum_below(sum_by(at, values, parent.size), parent)


def _sum_below(own: Ints, parent: Ints) -> Ints:
    """For each event the sum of its own value and those below it, at a cost that does not grow with depth."""
    total = own.copy()
    above = parent.copy()
    open_ = np.flatnonzero(above >= 0)
    while open_.size:
        # After k rounds an event holds the sum of all within 2**k - 1 levels below it, and adds just that to
        # the one 2**k above.
        np.add.at(total, above[open_], total[open_])
        above[open_] = above[above[open_]]
        open_ = open_[above[open_] >= 0]
    return total


def sum_by(place: Ints | Codes, values: Ints, size: int) -> Ints:
    """Exact sums of the values by place, 0 to ``size`` - 1."""
    total = np.zeros(size, np.int64)
    np.add.at(total, place, values)
    return total


def groups(codes: Ints | Codes) -> Iterator[tuple[int, Ints]]:
    """Each code with its positions, in order; one sort, however many codes there are."""
    order = order_of_codes(codes)
    ordered = codes[order]
    first = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    bounds = [0, *first.tolist(), order.size] if order.size else [0]
    for low, high in pairwise(bounds):
        yield int(ordered[low]), order[low:high]


def times_by_owner(trace: Trace, rows: Ints, parent: Ints) -> Ints:
    """How long each of these rows was the innermost one of them on its thread, in ns.

    ``parent`` is the place in ``rows`` of the one that contains each, -1 for none.
    """
    siblings = parent.copy()
    outer = np.flatnonzero(parent < 0)
    siblings[outer] = -1 - trace.track[rows[outer]]
    order = np.lexsort((trace.start_ns[rows], siblings))
    siblings = siblings[order]
    ordered = rows[order]
    later = trace.end_ns[ordered[:-1]] > trace.start_ns[ordered[1:]]
    if not (later & (siblings[1:] == siblings[:-1])).any():
        own = trace.duration_ns[rows]
        inner = np.flatnonzero(parent >= 0)
        np.subtract.at(own, parent[inner], trace.duration_ns[rows[inner]])
        return own
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
    for code, wanted in groups(track):
        theirs = of_track.get(code)
        if theirs is not None:
            segments = find_innermost(trace.start_ns[theirs], trace.end_ns[theirs])
            which, owner, _, _ = overlap(segments, times[wanted], times[wanted] + 1)
            found[wanted[which]] = theirs[owner]
    return found
