"""Time of the user's ranges: on the host, of the device work launched inside them, and of their backward."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfkit.measures._nested import find_open, groups, sum_by, times_by_owner
from perfkit.measures._rows import launched_work, mask_of, nearest_above, time_of
from perfkit.measures._trace_cache import once
from perfkit.measures.memory._allocations import changes_by_place, find_allocators, write_changes
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.results.host import RangeTime
from perfkit.measures.results.memory import MemoryChange
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Bools, Ints, expand

#: Ranges around one event that are counted, from the innermost on: a real program nests them below ten deep, and a
#: hostile file must not multiply its events by its depth.
MAX_NESTED = 64


def measure_range_times(trace: Trace) -> tuple[RangeTime, ...]:
    """Ranges by name, longest host time first; the steps are not among them.

    A range's device work is what was launched while it was open on the launching thread; work launched from a
    thread without ranges (the backward) belongs to the ranges open at that time on the main range thread: the
    one whose ranges cover the most time. Apart from that, the nodes of the backward, whenever they run, belong to the
    ranges around the forward ops that made them.
    """
    rows = trace.ranges
    if not rows.size:
        return ()
    names, place = np.unique(trace.name[rows], return_inverse=True)
    n = names.size
    #: Place of a row's name; only meaningful for ranges.
    place_of = np.full(len(trace), -1, np.int64)
    place_of[rows] = place
    hosts = sum_by(place, trace.duration_ns[rows], n)
    around = _around(trace)[rows]
    parent = np.where(around >= 0, np.searchsorted(rows, around), -1)
    owns = sum_by(place, times_by_owner(trace, rows, parent), n)
    counts = np.bincount(place, minlength=n)
    work = _device_work(trace)
    made = _nodes(trace)
    has_device = bool(trace.device_rows.size)
    has_nodes = np.bincount(place_of[made.ranges], minlength=n) > 0
    busy, own_busy, backward, backward_busy = (
        _busy(trace, place_of[pairs.ranges], pairs.events, n)
        for pairs in (work, work.only(work.innermost), made, _launched_in_nodes(trace, made))
    )
    memory = _memory(trace, place_of, n)
    found = [
        RangeTime(
            name=trace.names[code],
            count=int(counts[i]),
            host_ns=int(hosts[i]),
            self_ns=int(owns[i]),
            device_busy_ns=busy[i] if has_device else None,
            device_self_busy_ns=own_busy[i] if has_device else None,
            backward_ns=backward[i] if has_nodes[i] else None,
            backward_device_busy_ns=backward_busy[i] if has_nodes[i] and has_device else None,
            memory=memory[i] if memory is not None else None,
            source="trace",
        )
        for i, code in enumerate(names.tolist())
    ]
    return tuple(sorted(found, key=lambda one: -one.host_ns))


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
    events, holders = find_allocators(trace, place_of >= 0)
    if not events.size:
        return None
    found: list[dict[str, MemoryChange]] = [{} for _ in range(n)]
    pairs = _with_outer(holders, events, _around(trace))
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
