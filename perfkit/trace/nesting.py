"""Which event contains which, and which one a thread was in at any time.

With Python stacks, events of one thread are not properly nested: the frame of
``record_function.__enter__`` contains the *start* of a range that outlives it. Such an event is
*crossing*. So the innermost event at a time is the open event that began last, not the top of a
containment stack, and the parent of a crossing event is the nearest one that contains it wholly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.trace.intervals import Bools, Ints, expand


def find_parents(track: Ints, start: Ints, end: Ints) -> Ints:
    """For each event the index of the event on its track that contains it most closely; -1 for none.

    Events of equal extent: the earlier index contains the later. Events may come in any order.
    """
    parent, crossing = _open_at_start(track, start, end)
    for code in np.unique(track[crossing]):
        rows = np.flatnonzero(track == code)
        _sweep_parents(rows, start, end, parent)
    return parent


class Segments(NamedTuple):
    """Which event a track was in: ``owner[k]`` on ``[starts[k], ends[k])``; free time is left out."""

    starts: Ints
    ends: Ints
    owner: Ints


def find_innermost(start: Ints, end: Ints) -> Segments:
    """The innermost event of **one** track as a function of time."""
    track = np.zeros(start.size, np.int64)
    parent, crossing = _open_at_start(track, start, end)
    rows = np.flatnonzero(end > start)  # an event without length owns no time
    if crossing.any():
        times, owner = _sweep_innermost(rows, start, end)
    else:
        depth = _depths(parent)[rows]
        # At one instant: ends before starts, inner ends before outer ones, outer starts before inner ones.
        order = np.lexsort(
            (
                np.concatenate((rows, -rows)),
                np.concatenate((depth, -depth)),
                np.repeat(np.array([1, 0]), rows.size),
                np.concatenate((start[rows], end[rows])),
            )
        )
        times = np.concatenate((start[rows], end[rows]))[order]
        owner = np.concatenate((rows, parent[rows]))[order]
    until = np.append(times[1:], times[-1:])
    kept = (until > times) & (owner >= 0)
    return Segments(times[kept], until[kept], owner[kept])


def overlap(segments: Segments, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut intervals by segments: (interval, owner, start, end) of each piece with a length."""
    first = np.searchsorted(segments.ends, low, side="right")
    last = np.searchsorted(segments.starts, high, side="left")
    mine, theirs = expand(first, last)
    starts = np.maximum(low[mine], segments.starts[theirs])
    ends = np.minimum(high[mine], segments.ends[theirs])
    kept = ends > starts
    return mine[kept], segments.owner[theirs[kept]], starts[kept], ends[kept]


def nearest(wanted: Bools, parent: Ints) -> Ints:
    """For each event the nearest one above it (itself excluded) that is wanted; -1 for none."""
    found = parent.copy()
    open_ = np.flatnonzero(found >= 0)
    open_ = open_[~wanted[found[open_]]]
    while open_.size:
        # Each round doubles how far up an event has looked: no chain, however deep, costs more than its logarithm.
        found[open_] = found[found[open_]]
        open_ = open_[found[open_] >= 0]
        open_ = open_[~wanted[found[open_]]]
    return found


def _depths(parent: Ints) -> Ints:
    depth = (parent >= 0).astype(np.int64)
    above = parent.copy()
    open_ = np.flatnonzero(above >= 0)
    while open_.size:
        depth[open_] += depth[above[open_]]
        above[open_] = above[above[open_]]
        open_ = open_[above[open_] >= 0]
    return depth


def _open_at_start(track: Ints, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """The event that was innermost when each began, all tracks at once; and which events cross it.

    Exact where nothing crosses: the parent of an event at depth d is then the last event that began
    at depth d - 1. Where something crosses, at least the first crossing event of its track is marked.
    """
    n = start.size
    parent = np.full(n, -1, np.int64)
    crossing = np.zeros(n, bool)
    long_ = np.flatnonzero(end > start)
    # Longer events first where several begin together; the stable sort keeps the file's order for equals.
    long_ = long_[np.lexsort((-end[long_], start[long_], track[long_]))]
    m = long_.size
    if m:
        order = np.lexsort(
            (
                np.concatenate((np.arange(m), -np.arange(m))),
                np.repeat(np.array([1, 0]), m),  # ends before starts
                np.concatenate((start[long_], end[long_])),
                np.concatenate((track[long_], track[long_])),
            )
        )
        depth = np.cumsum(np.where(order < m, 1, -1))[order < m]
        # The last event that began before this one, one level up: (depth, place) as one sorted key.
        place = np.arange(m)
        key = depth * (m + 1) + place
        ranked = np.argsort(key)
        at = np.searchsorted(key[ranked], key - (m + 1)) - 1
        parent[long_] = np.where(depth > 1, long_[ranked[np.maximum(at, 0)]], -1)
        inner = long_[parent[long_] >= 0]
        crossing[inner] = end[inner] > end[parent[inner]]
    short = np.flatnonzero(end <= start)
    if short.size:
        short = short[np.lexsort((short, start[short], track[short]))]
        if m:
            parent[short] = _owner_at(track, start, end, long_, parent, order, short)
        # Events without length at one instant nest in the file's order.
        same = (track[short[1:]] == track[short[:-1]]) & (start[short[1:]] == start[short[:-1]])
        parent[short[1:][same]] = short[:-1][same]
    return parent, crossing


def _owner_at(track: Ints, start: Ints, end: Ints, long_: Ints, parent: Ints, order: Ints, short: Ints) -> Ints:
    """The innermost event with a length at the instants of those without."""
    m = long_.size
    rows = long_[order % m]
    begins = order < m
    times = np.where(begins, start[rows], end[rows])
    owner = np.where(begins, rows, parent[rows])
    # One sorted list of (track, time): a boundary at the instant itself counts as before it.
    merged = np.lexsort(
        (
            np.repeat(np.array([0, 1]), (times.size, short.size)),
            np.concatenate((times, start[short])),
            np.concatenate((track[rows], track[short])),
        )
    )
    boundary = np.where(merged < times.size, np.arange(merged.size), -1)
    last = np.maximum.accumulate(boundary)
    asked = np.flatnonzero(merged >= times.size)
    before = last[asked]
    found = merged[np.maximum(before, 0)]
    which = merged[asked] - times.size
    valid = (before >= 0) & (track[rows[np.minimum(found, times.size - 1)]] == track[short[which]])
    result = np.full(short.size, -1, np.int64)
    result[which] = np.where(valid, owner[np.minimum(found, times.size - 1)], -1)
    return result


def _sweep_parents(rows: Ints, start: Ints, end: Ints, parent: Ints) -> None:
    """`find_parents` for one track with crossing events, in place."""
    order = rows[np.lexsort((rows, -end[rows], start[rows]))]
    starts, ends = start[order].tolist(), end[order].tolist()
    found: list[int] = []
    stack: list[int] = []
    for i, (begin, stop) in enumerate(zip(starts, ends, strict=True)):
        while stack and ends[stack[-1]] <= begin:
            if stop == begin == starts[stack[-1]]:
                break  # both without length at one instant: nested in the file's order
            stack.pop()
        top = stack[-1] if stack else -1
        while top >= 0 and ends[top] < stop:
            top = found[top]
        found.append(top)
        stack.append(i)
    above = np.array(found, np.int64)
    parent[order] = np.where(above >= 0, order[above], -1)


def _sweep_innermost(rows: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Boundaries and the owner after each, for one track with crossing events."""
    rows = rows[np.lexsort((rows, -end[rows], start[rows]))]
    m = rows.size
    order = np.lexsort(
        (
            np.concatenate((np.arange(m), -np.arange(m))),
            np.repeat(np.array([1, 0]), m),
            np.concatenate((start[rows], end[rows])),
        )
    )
    times = np.concatenate((start[rows], end[rows]))[order]
    ended = [False] * m
    stack: list[int] = []
    owner: list[int] = []
    for entry in order.tolist():
        if entry < m:
            stack.append(entry)
        else:
            ended[entry - m] = True
            while stack and ended[stack[-1]]:
                stack.pop()
        owner.append(stack[-1] if stack else -1)
    found = np.array(owner, np.int64)
    return times, np.where(found >= 0, rows[found], -1)
