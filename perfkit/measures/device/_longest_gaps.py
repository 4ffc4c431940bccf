"""The longest idle intervals of a device, each with what the host was in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit.measures._rows import mask_of, nearest_above
from perfkit.measures.device._device_work import DeviceWork
from perfkit.measures.device._idle import CAUSES, Idle, Pieces
from perfkit.measures.results.device import Gap
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Ints

#: Idle intervals that are listed.
LONGEST = 10


def longest_gaps(trace: Trace, work: DeviceWork, idle: Idle) -> Iterator[Gap]:
    """The longest idle intervals, each with the cause that takes most of it and what the host was in."""
    begin, end = idle.intervals
    chosen = np.argsort(begin - end, kind="stable")[:LONGEST]
    blamed = [_blamed(trace, idle.pieces, interval) for interval in chosen.tolist()]
    ranges = _ranges_at(trace, np.array([row for _, row, _ in blamed], np.int64), (begin + end)[chosen] // 2)
    steps = work.steps
    step = np.searchsorted(work.bounds[1:-1], begin[chosen], side="right")
    for i, (interval, (cause, _, event)) in enumerate(zip(chosen.tolist(), blamed, strict=True)):
        after = int(idle.ended_by[interval])
        yield Gap(
            start_ns=int(begin[interval]),
            duration_ns=int(end[interval] - begin[interval]),
            cause=CAUSES[cause],
            event=event,
            range=trace.names[trace.name[ranges[i]]] if ranges[i] >= 0 else None,
            step=int(steps.number[step[i]]) if steps.row.size else None,
            stream=int(trace.stream[after]) if after >= 0 else None,
            before=trace.names[trace.name[after]] if after >= 0 else None,
        )


def _blamed(trace: Trace, pieces: Pieces, interval: int) -> tuple[int, int, str | None]:
    """The cause that takes most of an interval, the longest event with it (-1: none), the name that took most of it."""
    mine = np.flatnonzero(pieces.interval == interval)
    spent = pieces.ends[mine] - pieces.starts[mine]
    cause = int(np.bincount(pieces.cause[mine], weights=spent).argmax())
    known = (pieces.cause[mine] == cause) & (pieces.row[mine] >= 0)
    if not known.any():
        return cause, -1, None
    rows, spent = pieces.row[mine[known]], spent[known]
    # Many short calls of one name may outweigh the longest event.
    event = trace.names[int(np.bincount(trace.name[rows], weights=spent).argmax())]
    return cause, int(rows[spent.argmax()]), event


def _ranges_at(trace: Trace, rows: Ints, times: Ints) -> Ints:
    """The user's range that each event lies in on its thread; else the one that began last of those open at a time."""
    is_range = mask_of(trace, trace.ranges)
    found = np.where((rows >= 0) & is_range[rows], rows, -1)
    inner = np.flatnonzero((rows >= 0) & (found < 0))
    found[inner] = nearest_above(trace, rows[inner], is_range)
    for i in np.flatnonzero(found < 0).tolist():
        ranges = trace.ranges
        ranges = ranges[(trace.start_ns[ranges] <= times[i]) & (trace.end_ns[ranges] > times[i])]
        if ranges.size:
            found[i] = ranges[trace.start_ns[ranges].argmax()]
    return found
