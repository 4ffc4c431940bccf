"""Time of the user's ranges: on the host, of the device work launched inside them, and of their backward."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfkit.measures._durations import spread_by
from perfkit.measures._nested import find_open, groups, sum_by, times_by_owner
from perfkit.measures._rows import launched_work, mask_of, nearest_above, time_of
from perfkit.measures._trace_cache import once
from perfkit.measures.memory._allocations import changes_by_place, find_allocators, write_changes
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.results.host import RangeTime
from perfkit.measures.results.memory import MemoryChange
from perfkit.measures.steps._trace_steps import in_steps
from perfkit.trace.columns import Trace, positions_in
from perfkit.trace.intervals import Bools, Ints, expand

#: Ranges around one event that are counted, from the innermost on: a real program nests them below ten deep, and a
#: hostile file must not multiply its events by its depth.
MAX_NESTED = 64


def measure_range_times(trace: Trace) -> tuple[RangeTime, ...]:
    """Ranges by name that began in the steps (without steps: all), longest host time first; steps are not among them.

    Names whose ranges all began outside of the steps are counted over the recording (see `RangeTime.source`).

    A range's device work is what was launched while it was open on the launching thread; work launched from a
    thread without ranges (the backward) belongs to the ranges open at that time on the main range thread: the
    one whose ranges cover the most time. Apart from that, the nodes of the backward, whenever they run, belong to the
    ranges around the forward ops that made them.
    """
    rows = trace.ranges
    inside = in_steps(trace)[rows]
    # A range around the loop, or before it, begins in no step: it is counted by itself.
    known = np.bincount(trace.name[rows[inside]], minlength=len(trace.names)) > 0
    found = [
        *_times(trace, rows[inside], "trace"),
        *_times(trace, rows[~inside & ~known[trace.name[rows]]], "recording"),
    ]
    return tuple(sorted(found, key=lambda one: -one.host_ns))


def _times(trace: Trace, rows: Ints, source: str) -> Iterator[RangeTime]:
    """The times of these ranges by name."""
    if not rows.size:
        return
    names, place = np.unique(trace.name[rows], return_inverse=True)
    n = names.size
    #: Place of a row's name; -1 for what is none of these ranges.
    place_of = np.full(len(trace), -1, np.int64)
    place_of[rows] = place
    parent = positions_in(rows, _around(trace)[rows])  # rows are in the order of the file
    owns = sum_by(place, times_by_owner(trace, rows, parent), n)
    spread = {field: column.tolist() for field, column in spread_by(place, trace.duration_ns[rows], n).items()}
    work, made = (pairs.only(place_of[pairs.ranges] >= 0) for pairs in (_device_work(trace), _nodes(trace)))
    has_device = bool(trace.device_rows.size)
    has_nodes = np.bincount(place_of[made.ranges], minlength=n) > 0
    busy, own_busy, backward, backward_busy = (
        _busy(trace, place_of[pairs.ranges], pairs.events, n)
        for pairs in (work, work.only(work.innermost), made, _launched_in_nodes(trace, made))
    )
    projected, counts = _projected(trace, work, place_of, n)
    memory = _memory(trace, place_of, n)
    for i, code in enumerate(names.tolist()):
        yield RangeTime(
            name=trace.names[code],
            count=spread["count"][i],
            host_ns=spread["total_ns"][i],
            self_ns=int(owns[i]),
            device_busy_ns=busy[i] if has_device else None,
            device_self_busy_ns=own_busy[i] if has_device else None,
            backward_ns=backward[i] if has_nodes[i] else None,
            backward_device_busy_ns=backward_busy[i] if has_nodes[i] and has_device else None,
            memory=memory[i] if memory is not None else None,
            source=source,
            **{field: spread[field][i] for field in ("median_ns", "min_ns", "max_ns", "deviation_ns")},
            device_work=counts[i] if has_device else None,
            projected_ns=projected[i] if has_device else None,
        )


def _projected(trace: Trace, work: _Pairs, place_of: Ints, n: int) -> tuple[list[int], list[int]]:
    """By name: the time from the start of each range's first device work to the end of its last, and their number."""
    owners, owner = np.unique(work.ranges, return_inverse=True)
    first = np.full(owners.size, np.iinfo(np.int64).max)
    last = np.zeros(owners.size, np.int64)
    np.minimum.at(first, owner, trace.start_ns[work.events])
    np.maximum.at(last, owner, trace.end_ns[work.events])
    spans = sum_by(place_of[owners], last - first, n)
    return spans.tolist(), np.bincount(place_of[work.ranges], minlength=n).tolist()


class _Pairs(NamedTuple):
    """Pairs (range row, event row): the events inside each range, those of ranges inside it included.

    ``innermost`` masks the pairs whose range is the innermost one around the event.
    """

    ranges: Ints
    events: Ints
    innermost: Bools

    def only(self, chosen: Ints | Bools) -> _Pairs:
        return _Pairs(self.ranges[chosen], self.events[chosen], self.innermost[chosen])


def _device_work(trace: Trace) -> _Pairs:
    """The device work launched inside each range."""
    around = _around(trace)
    events = launched_work(trace)
    launch = trace.launch[events]
    nearest = around[launch]
    orphans = np.flatnonzero(nearest < 0)
    if orphans.size:
        nearest[orphans] = _open_on_main_thread(trace, launch[orphans])
    return _with_outer(nearest, events, around)


@once
def _around(trace: Trace) -> Ints:
    """The nearest range above each row on its thread; -1 for none."""
    return trace.above(mask_of(trace, trace.ranges))


def _with_outer(nearest: Ints, events: Ints, around: Ints) -> _Pairs:
    """Pairs of each event with the range it is in and with all ranges around that one."""
    none = np.zeros(0, np.int64)
    ranges, paired, innermost = [none], [none], [none.astype(bool)]
    for depth in range(MAX_NESTED):
        inside = nearest >= 0
        if not inside.any():
            break
        nearest, events = nearest[inside], events[inside]
        innermost.append(np.full(events.size, depth == 0))
        ranges.append(nearest)
        paired.append(events)
        nearest = around[nearest]
    return _Pairs(np.concatenate(ranges), np.concatenate(paired), np.concatenate(innermost))


def _nodes(trace: Trace) -> _Pairs:
    """The backward nodes that were made inside each range."""
    backward = pair_backward(trace)
    around = _around(trace)
    return _with_outer(around[backward.maker], backward.node, around)


def _launched_in_nodes(trace: Trace, made: _Pairs) -> _Pairs:
    """The device work launched inside nodes, by the ranges that made the nodes."""
    events = launched_work(trace)
    node = nearest_above(trace, trace.launch[events], mask_of(trace, made.events))
    order = np.argsort(node, kind="stable")
    events, node = events[order], node[order]
    low = np.searchsorted(node, made.events, side="left")
    high = np.searchsorted(node, made.events, side="right")
    mine, theirs = expand(low, high)
    return made.only(mine)._replace(events=events[theirs])


def _busy(trace: Trace, place: Ints, events: Ints, n: int) -> list[int]:
    """Length of the union of each place's events."""
    order = np.argsort(place, kind="stable")
    events = events[order]
    bounds = np.searchsorted(place[order], np.arange(n + 1)).tolist()
    return [time_of(trace, events[low:high]).length_ns for low, high in pairwise(bounds)]


def _memory(trace: Trace, place_of: Ints, n: int) -> list[dict[str, MemoryChange]] | None:
    """Memory of each range's name by device; None where the trace has no memory events."""
    events, holders = find_allocators(trace, mask_of(trace, trace.ranges))
    if not events.size:
        return None
    found: list[dict[str, MemoryChange]] = [{} for _ in range(n)]
    pairs = _with_outer(holders, events, _around(trace))
    pairs = pairs.only(place_of[pairs.ranges] >= 0)
    own = pairs.only(pairs.innermost)
    by_itself = {
        device: allocated - freed
        for device, allocated, freed in changes_by_place(trace, own.events, place_of[own.ranges], n)
    }
    for device, allocated, freed in changes_by_place(trace, pairs.events, place_of[pairs.ranges], n):
        write_changes(found, device, allocated, freed, by_itself[device])
    return found


def ranges_at(trace: Trace, rows: Ints) -> Ints:
    """The innermost range open when each row begins, on its thread, else on the main range thread; -1 for none."""
    found = find_open(trace, trace.ranges, trace.track[rows], trace.start_ns[rows])
    orphans = np.flatnonzero(found < 0)
    if orphans.size and trace.ranges.size:
        found[orphans] = _open_on_main_thread(trace, rows[orphans])
    return found


def _open_on_main_thread(trace: Trace, events: Ints) -> Ints:
    """The innermost range open when each row begins on its process' main range thread; -1 for none."""
    rows = trace.ranges
    codes: dict[str, int] = {}
    process = np.array([codes.setdefault(track.process, len(codes)) for track in trace.tracks], np.int64)
    # By time covered, not by number: ranges around collectives on the backward's thread are many and short.
    covered = np.full(len(trace.tracks), -1, np.int64)
    for track, mine in groups(trace.track[rows]):
        covered[track] = time_of(trace, rows[mine]).length_ns
    # The last of each process in order of time covered is the one that covers most.
    order = np.argsort(covered, kind="stable")
    main = np.full(len(codes), -1, np.int64)
    main[process[order]] = order
    return find_open(trace, rows, main[process[trace.track[events]]], trace.start_ns[events])
