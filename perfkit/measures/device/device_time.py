"""Busy and idle time of a device by kind and cause, in the whole window and in each step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.measures._rows import find_rows, time_of
from perfkit.measures.device._device_work import GRAPH_LAUNCH, DeviceWork, device_work
from perfkit.measures.device._idle import BACK_TO_BACK_NS, CAUSES, Idle, idle_of_devices
from perfkit.measures.device._idle_places import idle_times, late_gaps
from perfkit.measures.device._longest_gaps import longest_gaps
from perfkit.measures.device.copies import direction_of
from perfkit.measures.results.device import DeviceStep, DeviceTime, StreamTime
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, Union, clip, common, covered_before, joined, without

PAGEABLE = re.compile(r"Pageable")


def measure_device_time(trace: Trace) -> tuple[DeviceTime, ...]:
    """Busy and idle time of each device that worked, whole and per step (see `DeviceWork` for window and steps)."""
    names = {device.id: device.name for device in trace.metadata.devices}
    each = zip(device_work(trace), idle_of_devices(trace), strict=True)
    return tuple(_measure(trace, work, names.get(work.device), idle) for work, idle in each)


def _measure(trace: Trace, work: DeviceWork, name: str | None, idle: Idle) -> DeviceTime:
    low, high, rows = work.low, work.high, work.rows
    kind = trace.kind[rows]

    copies = rows[kind == Kind.COPY]
    pageable = np.intersect1d(copies, find_rows(trace, PAGEABLE, Kind.COPY))
    ways = direction_of(trace, copies)
    directions = {way: copies[ways == way] for way in sorted(set(ways.tolist()))}
    kernels = work.counted[trace.kind[work.counted] == Kind.KERNEL]
    calls = find_rows(trace, GRAPH_LAUNCH, Kind.RUNTIME)
    parts = {
        "busy_ns": work.busy,
        "idle_ns": idle.intervals,
        "compute_ns": work.compute,
        "communication_ns": work.communication,
        "copy_ns": work.copying,
        "exposed_communication_ns": without(work.communication, joined(work.compute, work.copying)),
        "exposed_copy_ns": without(work.copying, work.compute),
    }
    return DeviceTime(
        device=work.device,
        name=name or None,
        window_ns=high - low,
        memset_ns=work.memset.length_ns,
        copies_ns={way: clip(time_of(trace, found), low, high).length_ns for way, found in directions.items()},
        copy_bytes={way: int(np.maximum(trace.bytes[found], 0).sum()) for way, found in directions.items()},
        pageable_ns=clip(time_of(trace, pageable), low, high).length_ns,
        overlap_ns=common(work.communication, work.compute).length_ns,
        **{name: part.length_ns for name, part in parts.items()},
        kernels=kernels.size,
        mean_kernel_ns=int(trace.duration_ns[kernels].mean()) if kernels.size else None,
        causes=_causes(idle.by_step.sum(axis=1)),
        idle=idle_times(trace, idle.pieces),
        late_gaps=late_gaps(idle.pieces),
        longest=tuple(longest_gaps(trace, work, idle)),
        unlinked_share=float((trace.launch[work.everything] < 0).mean()),
        graph_launches=int(((trace.start_ns[calls] >= low) & (trace.start_ns[calls] < high)).sum()),
        steps=max(1, work.steps.row.size),
        per_step=tuple(_per_step(trace, work, idle, parts)) if work.steps.row.size else (),
        streams=tuple(_streams(trace, work)),
    )


def _per_step(trace: Trace, work: DeviceWork, idle: Idle, parts: dict[str, Union]) -> Iterator[DeviceStep]:
    lengths = {name: np.diff(covered_before(part, work.bounds)).tolist() for name, part in parts.items()}
    walls = np.diff(work.bounds).tolist()
    launched = work.step >= 0
    kernels = launched & (trace.kind[work.rows] == Kind.KERNEL)
    counts = np.bincount(work.step[kernels], minlength=work.steps.row.size).tolist()
    last = work.steps.end_ns.copy()
    np.maximum.at(last, work.step[launched], trace.end_ns[work.rows[launched]])
    late = (last - work.steps.end_ns).tolist()
    for i, number in enumerate(work.steps.number.tolist()):
        yield DeviceStep(
            step=number,
            wall_ns=walls[i],
            **{name: int(values[i]) for name, values in lengths.items()},
            causes=_causes(idle.by_step[:, i]),
            kernels=counts[i],
            late_ns=late[i],
        )


def _causes(spent: Ints) -> dict[str, int]:
    """Idle time by cause, longest first, from the time of each of `CAUSES`."""
    return {CAUSES[code]: int(spent[code]) for code in np.argsort(-spent, kind="stable").tolist() if spent[code]}


def _streams(trace: Trace, work: DeviceWork) -> Iterator[StreamTime]:
    rows = work.rows
    of = trace.stream[rows]
    for stream in np.unique(of).tolist():
        mine = rows[of == stream]  # in order of start
        starts, ends = trace.start_ns[mine], trace.end_ns[mine]
        # One stream may run two at once (dependent launches, graphs): the running maximum, not the last end.
        reach = np.maximum.accumulate(ends)
        low, high = np.maximum(reach[:-1], work.low), np.minimum(starts[1:], work.high)
        gap = np.maximum(high - low, 0)
        launch = trace.launch[mine[1:]]
        late = (launch >= 0) & (trace.start_ns[launch] > reach[:-1])
        soon = (launch >= 0) & ~late & (gap < BACK_TO_BACK_NS)
        yield StreamTime(
            stream=stream,
            count=mine.size,
            busy_ns=clip(time_of(trace, mine), work.low, work.high).length_ns,
            late_ns=int(gap[late].sum()),
            back_to_back_ns=int(gap[soon].sum()),
            queued_ns=int(gap[(launch >= 0) & ~late & ~soon].sum()),
            unlinked_ns=int(gap[launch < 0].sum()),
        )
