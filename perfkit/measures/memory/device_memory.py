"""Memory of each device over a trace: its peak, when that was, and who held it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.measures._nested import find_open, sum_by
from perfkit.measures._rows import name_codes
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.host.range_times import ranges_at
from perfkit.measures.memory._allocations import byte_counts, device_name
from perfkit.measures.memory._levels import MAX_HOLDERS, alive_at, levels_at, timeline
from perfkit.measures.results.memory import DeviceMemory, MemoryHolder
from perfkit.measures.steps._trace_steps import DATA, OPTIMIZER, backward_nodes, step_of, whole_steps
from perfkit.run.records import Phase
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Codes, Ints


class _MemoryEvents(NamedTuple):
    """The memory events of one device in order of time; equal addresses have equal codes, -1 for unknown."""

    rows: Ints
    address: Codes
    total: Ints | None
    reserved: Ints | None


def measure_device_memory(trace: Trace) -> tuple[DeviceMemory, ...]:
    """Memory of each device, largest peak first, from the allocations and frees in the trace.

    Empty where it has none: torch.profiler writes them with ``profile_memory=True``. Those of the host show only what
    was allocated while the trace was recorded.
    """
    rows = np.flatnonzero(trace.is_kind(Kind.MEMORY))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    if not rows.size:
        return ()
    fields = trace.fields(rows, ("Addr", "Total Allocated", "Total Reserved"))
    address = fields["Addr"].codes
    total, reserved = fields["Total Allocated"].numbers(), fields["Total Reserved"].numbers()
    found = []
    for device in np.unique(trace.device[rows]).tolist():
        mine = trace.device[rows] == device
        # The host's total continues from one recording to the next without what was freed in between.
        totals = (byte_counts(total[mine]), byte_counts(reserved[mine])) if device >= 0 else (None, None)
        events = _MemoryEvents(rows[mine], address[mine], *totals)
        found.append(_measure(trace, device, events, int(trace.start_ns[rows[0]]), int(trace.start_ns[rows[-1]])))
    return tuple(sorted(found, key=lambda one: -one.peak_bytes))


def _measure(trace: Trace, device: int, events: _MemoryEvents, first_ns: int, last_ns: int) -> DeviceMemory:
    times, change, reserved = trace.start_ns[events.rows], trace.bytes[events.rows], events.reserved
    level = events.total if events.total is not None else np.cumsum(change)
    before = int(level[0] - change[0])
    peak = int(level.argmax())
    steps = whole_steps(trace)
    step = int(step_of(steps, times[peak : peak + 1])[0])
    known = not (events.address < 0).any()
    alive = alive_at(peak, change, events.address)
    held = _held(trace, events.rows[alive], change[alive]) if known else ()
    held_bytes = sum(one.bytes for one in held)
    return DeviceMemory(
        device=device_name(device),
        peak_bytes=int(level[peak]),
        peak_ns=int(times[peak]),
        peak_step=int(steps.number[step]) if step >= 0 else None,
        peak_phase=_phase_at(trace, int(times[peak])) if step >= 0 else None,
        reserved_bytes=int(reserved[peak]) if reserved is not None else None,
        reserved_peak_bytes=int(reserved.max()) if reserved is not None else None,
        is_absolute=events.total is not None,
        allocations=int((change > 0).sum()),
        frees=int((change < 0).sum()),
        held=held[:MAX_HOLDERS],
        other_bytes=sum(one.bytes for one in held[MAX_HOLDERS:]) if known else None,
        before_bytes=int(level[peak]) - held_bytes if known and events.total is not None else None,
        step_end_bytes=tuple(levels_at(times, level, before, steps.end_ns).tolist()),
        timeline=timeline(times, level, before, reserved, first_ns, last_ns),
    )


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
    keys = np.stack([*(name_codes(trace, row) for row in who), in_step], axis=1)
    unique, place, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    held = sum_by(place.reshape(-1), sizes, len(unique))

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
    """The phase of a step at this time; None where the trace does not show it."""
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
