"""Rows of a trace by kind, name and launch, and what is above them: for measures of few among many events."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._trace_cache import once
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints, Union, union

#: Stacks of real programs are less deep (the deepest seen: 90 frames). What is deeper is found at the cost of a pass
#: over all rows, so that no file can make climbing slow.
DEEP = 200
#: Characters of a name in which a pattern is searched, as many as are read of an nsys export. The longest kernels have
#: some thousand; a hostile name has ten million, and many patterns are searched.
_SEARCHED = 20_000


def find_rows(trace: Trace, pattern: re.Pattern[str], *kinds: Kind) -> Ints:
    """Rows of these kinds whose name has a match (``pattern.search``), in the order of the file."""
    found = (pattern.search(name, 0, _SEARCHED) is not None for name in trace.names)
    hit = np.fromiter(found, bool, len(trace.names))
    if not hit.any():
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(trace.is_kind(*kinds))
    return np.asarray(rows[hit[trace.name[rows]]], np.int64)


@once
def launched_work(trace: Trace) -> Ints:
    """Rows of the device work whose launch is in the trace."""
    return trace.device_rows[trace.launch[trace.device_rows] >= 0]


def mask_of(trace: Trace, rows: Ints) -> Bools:
    """A mask of these rows."""
    mask = np.zeros(len(trace), bool)
    mask[rows] = True
    return mask


def name_codes(trace: Trace, rows: Ints) -> Ints:
    """The name of each of these rows, as a code; -1 for no row, -1."""
    return np.where(rows >= 0, trace.name[rows], -1)


def time_of(trace: Trace, rows: Ints) -> Union:
    """The time in which any of these rows was open."""
    return union(trace.start_ns[rows], trace.end_ns[rows])


def nearest_above(trace: Trace, rows: Ints, wanted: Bools) -> Ints:
    """For each of these rows the nearest wanted row above it on its thread, itself excluded; -1 for none.

    `Trace.above` finds it for all rows at once; this one climbs from a few.
    """
    if rows.size > len(trace) // 4:
        return trace.above(wanted)[rows]
    found = trace.parent[rows]
    open_ = np.flatnonzero(found >= 0)
    open_ = open_[~wanted[found[open_]]]
    for _ in range(DEEP):
        if not open_.size:
            return found
        found[open_] = trace.parent[found[open_]]
        open_ = open_[found[open_] >= 0]
        open_ = open_[~wanted[found[open_]]]
    found[open_] = trace.above(wanted)[found[open_]]
    return found


def outermost_above(trace: Trace, rows: Ints, wanted: Bools) -> Ints:
    """For each of these rows the wanted row above it that no other wanted row is above; -1 for none."""
    found = nearest_above(trace, rows, wanted)
    open_ = np.flatnonzero(found >= 0)
    for _ in range(DEEP):
        if not open_.size:
            return found
        above = nearest_above(trace, found[open_], wanted)
        open_ = open_[above >= 0]
        found[open_] = above[above >= 0]
    outer = trace.above(wanted & (trace.above(wanted) < 0))[found[open_]]
    found[open_] = np.where(outer >= 0, outer, found[open_])
    return found
