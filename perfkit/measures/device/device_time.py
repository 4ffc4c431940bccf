"""Busy and idle time of a device by kind and cause, in the whole window and in each step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.measures._rows import find_rows
from perfkit.measures.device._device_work import GRAPH_LAUNCH, DeviceWork, device_work
from perfkit.measures.device._idle import BACK_TO_BACK_NS, CAUSES, Host, Idle, charge_idle, longest_gaps
from perfkit.measures.device.copies import direction_of
from perfkit.measures.results.device import DeviceStep, DeviceTime, StreamTime
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, Union, clip, common, covered_before, joined, union, without

PAGEABLE = re.compile(r"Pageable")


def measure_device_time(trace: Trace) -> tuple[DeviceTime, ...]:
    """Busy and idle time of each device that worked, whole and per step (see `DeviceWork` for window and steps)."""
    works = device_work(trace)
    if not works:
        return ()
    host = Host(trace)
    names = {device.id: device.name for device in trace.metadata.devices}
    return tuple(_measure(trace, work, names.get(work.device), host) for work in works)


def _measure(trace: Trace, work: DeviceWork, name: str | None, host: Host) -> DeviceTime:
    low, high, rows = work.low, work.high, work.rows
    kind = trace.kind[rows]

    def covered(chosen: Ints) -> Union:
        return clip(union(trace.start_ns[chosen], trace.end_ns[chosen]), low, high)

    copies = rows[kind == Kind.COPY]
    pageable = np.intersect1d(copies, find_rows(trace, PAGEABLE, Kind.COPY))
    ways = direction_of(trace, copies)
    directions = {way: copies[ways == way] for way in sorted(set(ways.tolist()))}
    kernels = rows[kind == Kind.KERNEL]
    idle = charge_idle(trace, work, host)
    total = idle.by_step.sum(axis=1)
    calls = find_rows(trace, GRAPH_LAUNCH, Kind.RUNTIME)
    exposed = without(work.communication, joined(work.compute, work.copying))
    exposed_copy = without(work.copying, work.compute)
    return DeviceTime(
        device=work.device,
        name=name or None,
        window_ns=high - low,
        busy_ns=work.busy.length_ns,
        idle_ns=idle.intervals.length_ns,
        compute_ns=work.compute.length_ns,
        communication_ns=work.communication.length_ns,
        copy_ns=work.copying.length_ns,
        memset_ns=work.memset.length_ns,
        copies_ns={way: covered(found).length_ns for way, found in directions.items()},
        copy_bytes={way: int(np.maximum(trace.bytes[found], 0).sum()) for way, found in directions.items()},
        pageable_ns=covered(pageable).length_ns,
        overlap_ns=common(work.communication, work.compute).length_ns,
        exposed_communication_ns=exposed.length_ns,
        exposed_copy_ns=exposed_copy.length_ns,
        kernels=kernels.size,
        mean_kernel_ns=int(trace.duration_ns[kernels].mean()) if kernels.size else None,
        causes={CAUSES[code]: int(total[code]) for code in np.argsort(-total, kind="stable") if total[code]},
        longest=tuple(longest_gaps(trace, work, idle)),
        unlinked_share=float((trace.launch[work.everything] < 0).mean()),
        graph_launches=int(((trace.start_ns[calls] >= low) & (trace.start_ns[calls] < high)).sum()),
        steps=max(1, work.steps.row.size),
        per_step=tuple(_per_step(trace, work, idle, exposed, exposed_copy)) if work.steps.row.size else (),
        streams=tuple(_streams(trace, work)),
    )


def _per_step(trace: Trace, work: DeviceWork, idle: Idle, exposed: Union, exposed_copy: Union) -> Iterator[DeviceStep]:
    n = work.steps.row.size

    def parts(of: Union) -> list[int]:
        return [int(ns) for ns in np.diff(covered_before(of, work.bounds))]

    lengths = [int(ns) for ns in np.diff(work.bounds)]
    columns = zip(
        *(parts(of) for of in (work.busy, idle.intervals, work.compute, work.communication, work.copying)),
        *(parts(of) for of in (exposed, exposed_copy)),
        strict=True,
    )
    is_kernel = trace.kind[work.rows] == Kind.KERNEL
    launched = np.bincount(work.step[is_kernel & (work.step >= 0)], minlength=n).tolist()
    last = work.steps.end_ns.copy()
    np.maximum.at(last, work.step[work.step >= 0], trace.end_ns[work.rows[work.step >= 0]])
    late = (last - work.steps.end_ns).tolist()
    for i, (busy, free, compute, communication, copying, bare, bare_copy) in enumerate(columns):
        spent = idle.by_step[:, i]
        yield DeviceStep(
            step=int(work.steps.number[i]),
            wall_ns=lengths[i],
            busy_ns=busy,
            idle_ns=free,
            compute_ns=compute,
            communication_ns=communication,
            copy_ns=copying,
            exposed_communication_ns=bare,
            exposed_copy_ns=bare_copy,
            causes={CAUSES[code]: int(spent[code]) for code in np.argsort(-spent, kind="stable") if spent[code]},
            kernels=launched[i],
            late_ns=late[i],
        )


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
            busy_ns=clip(union(starts, ends), work.low, work.high).length_ns,
            late_ns=int(gap[late].sum()),
            back_to_back_ns=int(gap[soon].sum()),
            queued_ns=int(gap[(launch >= 0) & ~late & ~soon].sum()),
            unlinked_ns=int(gap[launch < 0].sum()),
        )
