"""Which event contains which, and which event a thread was in at any time.

With Python stacks, events of one thread are not properly nested: the frame of ``record_function.__enter__`` contains
the *start* of a range that outlives it. Such an event is *crossing*. So the innermost event at a time is the open event
that began last, not the top of a containment stack, and the parent of a crossing event is the nearest event that
contains it completely. In order of start, both are the last event before this one that ends no earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from perfkit.trace.intervals import Bools, Codes, Ints, expand

#: Tracks are processed together up to this many events: 10 MB per array, and no Python for each of many small tracks.
BATCH = 1 << 18

#: Rounds in which all candidates advance together (real traces need 40); the rest is looked up one by one.
MAX_ROUNDS = 200


def find_parents(track: Codes | Ints, start: Ints, end: Ints, among: Ints | None = None) -> Ints:
    """For each event the index of the innermost event on its track that contains it; -1 for none.

    Of two events of equal extent the earlier index contains the later. An event does not contain an event of zero
    length at the instant of its own end. Events may come in any order. With ``among``, the other events contain
    nothing and have no parent.
    """
    parent = np.full(start.size, -1, np.int64)
    for rows in _batches(track, np.arange(start.size) if among is None else among):
        own = track[rows]
        stop = end[rows]
        begin = start[rows]
        reach = _reach(begin, stop)
        order = np.lexsort((-stop, begin, own)) if own[0] != own[-1] else _outer_first(begin, stop)
        del begin, stop  # a million events of one thread make 8 MB of each
        rows, own, reach = rows[order], own[order], reach[order]
        first = np.append(True, own[1:] != own[:-1])
        found = _last_not_less(reach, first)
        parent[rows] = np.where(found >= 0, rows[np.maximum(found, 0)], -1)
    return parent


class Segments(NamedTuple):
    """Which event a track was in: ``owner[k]`` during ``[starts[k], ends[k])``; time outside any event is left out."""

    starts: Ints
    ends: Ints
    owner: Ints


def find_innermost(start: Ints, end: Ints) -> Segments:
    """The innermost event of **one** track as a function of time."""
    rows = np.flatnonzero(end > start)  # an event of zero length owns no time
    rows = rows[_outer_first(start[rows], end[rows])]
    begin, stop = start[rows], end[rows]
    parent = _last_not_less(_reach(begin, stop), np.arange(rows.size) == 0)
    times = np.sort(np.concatenate((begin, stop)))  # np.unique hashes, which takes six times as long
    times = times[np.append(True, times[1:] > times[:-1])] if times.size else times
    # The event that began last, or where that has ended, its nearest ancestor that has not.
    owner = np.searchsorted(begin, times, side="right") - 1
    ended = np.flatnonzero(stop[owner] <= times)
    for _ in range(MAX_ROUNDS):
        if not ended.size:
            break
        above = parent[owner[ended]]
        owner[ended] = above
        ended = ended[(above >= 0) & (stop[above] <= times[ended])]
    else:
        owner = _innermost_one_by_one(begin, stop, times)
    kept = np.flatnonzero(owner[:-1] >= 0)
    return Segments(times[kept], times[kept + 1], rows[owner[kept]])


def overlap(segments: Segments, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut intervals by segments: (interval, owner, start, end) of each piece with a length."""
    first = np.searchsorted(segments.ends, low, side="right")
    last = np.searchsorted(segments.starts, high, side="left")
    mine, theirs = expand(first, last)
    starts = np.maximum(low[mine], segments.starts[theirs])
    ends = np.minimum(high[mine], segments.ends[theirs])
    kept = ends > starts
    return mine[kept], segments.owner[theirs[kept]], starts[kept], ends[kept]


def nearest_ancestor(wanted: Bools, parent: Ints) -> Ints:
    """For each event its nearest ancestor (itself excluded) that is wanted; -1 for none."""
    if not wanted.any():
        return np.full(parent.size, -1, np.int64)
    found = parent.copy()
    open_ = np.flatnonzero(found >= 0)
    open_ = open_[~wanted[found[open_]]]
    while open_.size:
        # Each round doubles how far up an event has searched: a chain costs the logarithm of its depth.
        found[open_] = found[found[open_]]
        open_ = open_[found[open_] >= 0]
        open_ = open_[~wanted[found[open_]]]
    return found


def _batches(track: Codes | Ints, rows: Ints) -> Iterator[Ints]:
    """The rows of whole tracks, some tracks at a time."""
    own = track[rows]
    order = order_of_codes(own)
    rows, own = rows[order], own[order]
    last = np.append(np.flatnonzero(own[1:] != own[:-1]) + 1, own.size)
    begin = 0
    while begin < rows.size:
        stop = int(last[min(int(np.searchsorted(last, begin + BATCH)), last.size - 1)])
        yield rows[begin:stop]
        begin = stop


def order_of_codes(codes: Codes | Ints) -> Ints:
    """The order that sorts codes; equal codes keep their order."""
    few = codes.size and codes.min() >= 0 and codes.max() < 2**16
    # numpy sorts 16 bits in one pass.
    return np.asarray(np.argsort(codes.astype(np.uint16) if few else codes, kind="stable"), np.int64)


def _outer_first(start: Ints, end: Ints) -> Ints:
    """The order of start; of events that start together the longest comes first."""
    # Events are nearly in order of time in files, which makes a stable sort by one key fast.
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    same = np.append(ordered[1:] == ordered[:-1], False)
    same[1:] |= same[:-1]
    together = np.flatnonzero(same)
    some = order[together]
    order[together] = some[np.lexsort((-end[some], start[some]))]
    return order


def _reach(start: Ints, end: Ints) -> Ints:
    """How far an event contains others: twice its end, plus one for an instant, which its parent must end after."""
    reach = end - (int(start.min()) if start.size else 0)
    reach *= 2
    reach[end <= start] += 1
    return reach


def _last_not_less(reach: Ints, first: Bools) -> Any:
    """For each position the last earlier position with a value that is not less; -1 for none since the last ``first``.

    All positions search at once: the position before, then what that one has found so far, because everything between
    is less. The result is int32 where that is enough.
    """
    found: Any = np.arange(-1, reach.size - 1, dtype=np.int32 if reach.size < 2**31 else np.int64)
    found[first] = -1
    open_ = np.flatnonzero(~first[1:] & (reach[:-1] < reach[1:])).astype(found.dtype) + found.dtype.type(1)
    found[open_] = found[open_ - 1]
    open_ = open_[found[open_] >= 0]
    for _ in range(MAX_ROUNDS):
        at = found[open_]
        less = reach[at] < reach[open_]
        open_, at = open_[less], at[less]
        if not open_.size:
            return found
        onwards = found[at]
        found[open_] = onwards
        open_ = open_[onwards >= 0]
    # Thousands of open events that one later event outlives: never seen in a recording, but a file may claim it.
    return _last_not_less_one_by_one(reach, first)


def _last_not_less_one_by_one(reach: Ints, first: Bools) -> Ints:
    found: list[int] = []
    stack: list[int] = []
    values = reach.tolist()
    for position, (value, is_first) in enumerate(zip(values, first.tolist(), strict=True)):
        if is_first:
            stack.clear()
        while stack and values[stack[-1]] < value:
            stack.pop()
        found.append(stack[-1] if stack else -1)
        stack.append(position)
    return np.array(found, np.int64)


def _innermost_one_by_one(begin: Ints, stop: Ints, times: Ints) -> Ints:
    owner: list[int] = []
    stack: list[int] = []
    begins, stops = begin.tolist(), stop.tolist()
    begun = 0
    for time in times.tolist():
        while begun < len(begins) and begins[begun] <= time:
            stack.append(begun)
            begun += 1
        while stack and stops[stack[-1]] <= time:
            stack.pop()
        owner.append(stack[-1] if stack else -1)
    return np.array(owner, np.int64)
