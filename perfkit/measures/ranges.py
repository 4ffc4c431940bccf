"""Time of the user's ranges: on the host, and of the device work launched inside them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.measures.results import RangeTime
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Ints, union
from perfkit.trace.nesting import find_innermost, overlap


def measure_ranges(trace: Trace) -> tuple[RangeTime, ...]:
    """Ranges by name, longest host time first; the steps are not among them.

    ``host_ns`` sums the ranges' durations. A range's device work is what was launched while it was open on
    the launching thread; work launched from a thread without ranges (the backward) belongs to the ranges
    open at that time on the main range thread: the one whose ranges cover the most time.
    """
    rows = trace.ranges
    if not rows.size:
        return ()
    work = device_work_of_ranges(trace) if trace.device_rows.size else None
    found = []
    for code in np.unique(trace.name[rows]).tolist():
        mine = rows[trace.name[rows] == code]
        busy = None
        if work is not None:
            events = np.unique(work.events[np.isin(work.ranges, mine)])
            busy = union(trace.start_ns[events], trace.end_ns[events]).length_ns
        found.append(
            RangeTime(
                name=trace.names[code],
                count=mine.size,
                host_ns=int((trace.end_ns - trace.start_ns)[mine].sum()),
                device_busy_ns=busy,
                source="trace",
            )
        )
    return tuple(sorted(found, key=lambda one: -one.host_ns))


class RangeWork(NamedTuple):
    """Pairs (range row, device row): the device work launched inside each range, those around it included."""

    ranges: Ints
    events: Ints


def device_work_of_ranges(trace: Trace) -> RangeWork:
    """Which device work belongs to which ranges."""
    is_range = np.zeros(len(trace), bool)
    is_range[trace.ranges] = True
    around = trace.above(is_range)
    events = trace.device_rows[trace.launch[trace.device_rows] >= 0]
    launch = trace.launch[events]
    nearest = around[launch]
    orphans = np.flatnonzero(nearest < 0)
    if orphans.size:
        nearest[orphans] = _open_on_main_thread(trace, launch[orphans])
    ranges, paired = [], []
    while (inside := nearest >= 0).any():
        nearest, events = nearest[inside], events[inside]
        ranges.append(nearest)
        paired.append(events)
        nearest = around[nearest]
    none = np.zeros(0, np.int64)
    return RangeWork(np.concatenate([none, *ranges]), np.concatenate([none, *paired]))


def _open_on_main_thread(trace: Trace, launches: Ints) -> Ints:
    """The innermost range open at each launch on its process' main range thread; -1 for none."""
    rows = trace.ranges
    process = np.array(_process_codes(trace), np.int64)
    found = np.full(launches.size, -1, np.int64)
    for code in np.unique(process[trace.track[launches]]).tolist():
        asked = np.flatnonzero(process[trace.track[launches]] == code)
        theirs = rows[process[trace.track[rows]] == code]
        if not theirs.size:
            continue
        tracks = np.unique(trace.track[theirs]).tolist()
        # By time covered, not by number: ranges around collectives on the backward's thread are many and short.
        main = max(tracks, key=lambda track: _covered(trace, theirs[trace.track[theirs] == track]))
        theirs = theirs[trace.track[theirs] == main]
        segments = find_innermost(trace.start_ns[theirs], trace.end_ns[theirs])
        at = trace.start_ns[launches[asked]]
        which, owner, _, _ = overlap(segments, at, at + 1)
        found[asked[which]] = theirs[owner]
    return found


def _covered(trace: Trace, rows: Ints) -> int:
    return union(trace.start_ns[rows], trace.end_ns[rows]).length_ns


def _process_codes(trace: Trace) -> list[int]:
    codes: dict[str, int] = {}
    return [codes.setdefault(track.process, len(codes)) for track in trace.tracks]
