"""Memory over time, device by device: its peak, when that was, and who held it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.measures._nested import find_open
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.host.range_times import ranges_at
from perfkit.measures.memory._allocations import device_name
from perfkit.measures.results.memory import DeviceMemory, MemoryHolder, MemoryTimeline
from perfkit.measures.steps._trace_steps import DATA, OPTIMIZER, backward_nodes, step_of, whole_steps
from perfkit.run.records import Phase
from perfkit.trace.columns import Codes, Kind, Trace
from perfkit.trace.intervals import Ints

#: Levels of a timeline: about two for each column of a figure in a page.
BUCKETS = 1_000
#: Holders that are listed; a model's largest twenty hold most of what it holds.
MOST_HOLDERS = 20


def measure_device_memory(trace: Trace) -> tuple[DeviceMemory, ...]:
    """Memory of each device, largest peak first, from the allocations and frees in the trace.

    Empty where it has none: torch.profiler writes them with ``profile_memory=True``. Of the host they tell only
    what was allocated while the trace was recorded.
    """
    rows = np.flatnonzero(trace.is_kind(Kind.MEMORY))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    if not rows.size:
        return ()
    fields = trace.fields(rows, ("Addr", "Total Allocated", "Total Reserved"))
    address = fields["Addr"].codes
    total, reserved = fields["Total Allocated"].numbers(), fields["Total Reserved"].numbers()
    window = TimeSpan(int(trace.start_ns[rows[0]]), int(trace.start_ns[rows[-1]]))
    found = []
    for device in np.unique(trace.device[rows]).tolist():
        mine = trace.device[rows] == device
        events = _Events(rows[mine], trace.start_ns[rows[mine]], trace.bytes[rows[mine]], address[mine])
        found.append(_measure(trace, device, events, _whole(total[mine]), _whole(reserved[mine]), window))
    return tuple(sorted(found, key=lambda one: -one.peak_bytes))


class TimeSpan(NamedTuple):
    """The time of a timeline: its first and its last event."""

    start_ns: int
    end_ns: int


class _Events(NamedTuple):
    """The memory events of one device in order of time; equal addresses have equal codes, -1 for unknown."""

    rows: Ints
    times: Ints
    change: Ints
    address: Codes


def _whole(numbers: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Ints | None:
    """Byte counts; None where one is missing. Below 2**53 a float holds them exactly."""
    usable = np.isfinite(numbers) & (np.abs(numbers) < 2.0**53)
    return numbers.astype(np.int64) if usable.all() else None


def _measure(
    trace: Trace, device: int, events: _Events, total: Ints | None, reserved: Ints | None, window: TimeSpan
) -> DeviceMemory:
    # The host's total goes on from one recording to the next without what was freed in between.
    is_absolute = device >= 0 and total is not None
    level = total if is_absolute and total is not None else np.cumsum(events.change)
    before = int(level[0] - events.change[0])
    peak = int(level.argmax())
    steps = whole_steps(trace)
    at = events.times[peak : peak + 1]
    step = int(step_of(steps, at)[0])
    known = not (events.address < 0).any()
    alive = alive_at(peak, events.change, events.address)
    held = _held(trace, events.rows[alive], events.change[alive]) if known else ()
    listed = held[:MOST_HOLDERS]
    held_bytes = sum(one.bytes for one in held)
    own_reserved = reserved if device >= 0 else None
    return DeviceMemory(
        device=device_name(device),
        peak_bytes=int(level[peak]),
        peak_ns=int(at[0]),
        peak_step=int(steps.number[step]) if step >= 0 else None,
        peak_phase=_phase_at(trace, int(at[0])) if step >= 0 else None,
        reserved_bytes=int(own_reserved[peak]) if own_reserved is not None else None,
        reserved_peak_bytes=int(own_reserved.max()) if own_reserved is not None else None,
        is_absolute=is_absolute,
        allocations=int((events.change > 0).sum()),
        frees=int((events.change < 0).sum()),
        held=listed,
        other_bytes=held_bytes - sum(one.bytes for one in listed) if known else None,
        before_bytes=int(level[peak]) - held_bytes if known and is_absolute else None,
        step_end_bytes=tuple(_levels_at(events.times, level, before, steps.end_ns).tolist()),
        timeline=timeline(events.times, level, before, own_reserved, window),
    )


def _levels_at(times: Ints, level: Ints, before: int, asked: Ints) -> Ints:
    """The level just before each time."""
    at = np.searchsorted(times, asked, side="left") - 1
    return np.where(at >= 0, level[np.maximum(at, 0)], before)


def timeline(times: Ints, level: Ints, before: int, reserved: Ints | None, window: TimeSpan) -> MemoryTimeline:
    """The levels after each of these rising times in at most `BUCKETS` buckets; ``before`` is the one at first."""
    bucket_ns = max(1, -(-(window.end_ns + 1 - window.start_ns) // BUCKETS))
    n = (window.end_ns - window.start_ns) // bucket_ns + 1
    starts = window.start_ns + bucket_ns * np.arange(n)
    bucket = (times - window.start_ns) // bucket_ns

    def highest(levels: Ints, first: int) -> tuple[int, ...]:
        found = _levels_at(times, levels, first, starts)
        np.maximum.at(found, bucket, levels)
        return tuple(found.tolist())

    return MemoryTimeline(
        start_ns=window.start_ns,
        bucket_ns=bucket_ns,
        allocated_bytes=highest(level, before),
        reserved_bytes=highest(reserved, int(reserved[0])) if reserved is not None else (),
    )


def alive_at(peak: int, change: Ints, address: Ints | Codes) -> Ints:
    """Positions of the allocations up to ``peak`` that were not freed by then; equal addresses have equal codes."""
    order = np.argsort(address, kind="stable")
    # Whatever comes next at an address, even an allocation whose free was lost, means that this one is gone.
    gone = np.full(order.size, order.size)
    same = address[order[1:]] == address[order[:-1]]
    gone[order[:-1][same]] = order[1:][same]
    return np.flatnonzero((change > 0) & (np.arange(order.size) <= peak) & (gone > peak))


def _held(trace: Trace, rows: Ints, sizes: Ints) -> tuple[MemoryHolder, ...]:
    """Allocations by who made them, largest first."""
    ops = trace.is_kind(Kind.OP)
    times, tracks = trace.start_ns[rows], trace.track[rows]
    op = find_open(trace, np.flatnonzero(ops), tracks, times)
    callers = trace.above(ops)
    outermost = trace.above(ops & (callers < 0))
    top = np.where((op >= 0) & (callers[op] >= 0), outermost[op], op)
    frames = PythonFrames(trace, None, ()).rows if trace.is_kind(Kind.PYTHON).any() else np.zeros(0, np.int64)
    who = [op, top, ranges_at(trace, rows), find_open(trace, frames, tracks, times)]
    steps = whole_steps(trace)
    in_step = step_of(steps, times)
    keys = np.stack([*(np.where(row >= 0, trace.name[row], -1) for row in who), in_step], axis=1)
    unique, place = np.unique(keys, axis=0, return_inverse=True)
    place = place.reshape(-1)
    held = np.zeros(len(unique), np.int64)
    np.add.at(held, place, sizes)
    counts = np.bincount(place, minlength=len(unique))

    def name(code: int) -> str | None:
        return trace.names[code] if code >= 0 else None

    found = [
        MemoryHolder(
            bytes=int(held[i]),
            allocations=int(counts[i]),
            op=name(codes[0]),
            top_op=name(codes[1]),
            range=name(codes[2]),
            function=name(codes[3]),
            step=int(steps.number[codes[4]]) if codes[4] >= 0 else None,
        )
        for i, codes in enumerate(unique.tolist())
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _phase_at(trace: Trace, time: int) -> Phase | None:
    """The phase of a step at this time; None where the trace cannot tell."""
    is_open = (trace.start_ns <= time) & (trace.end_ns > time)
    ranges = is_open & trace.is_kind(Kind.RANGE)
    if (ranges & trace.name_matches(DATA)).any():
        return "data"
    if (ranges & trace.name_matches(OPTIMIZER)).any():
        return "optimizer"
    steps = whole_steps(trace)
    nodes = np.flatnonzero(backward_nodes(trace))
    nodes = nodes[step_of(steps, trace.start_ns[nodes]) == step_of(steps, np.array([time]))[0]]
    if not nodes.size:
        return None
    if time < trace.start_ns[nodes].min():
        return "forward"
    return "backward" if time < trace.end_ns[nodes].max() else "other"
