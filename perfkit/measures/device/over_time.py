"""A device over time, in equal parts of its window: the length of its queue, and the bandwidth of its copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit.measures.device._device_work import DeviceWork, device_work
from perfkit.measures.device.copies import direction_of
from perfkit.measures.device.launches import POINTS, measure_launches
from perfkit.measures.results.groups import BandwidthPart, QueuePart
from perfkit.trace.columns import Kind, Trace


def queue_over_time(trace: Trace) -> Iterator[QueuePart]:
    """The mean length of each device's queue, as `Launches.depth_over_time` has it, with times."""
    windows = {work.device: work for work in device_work(trace)}
    for launches in measure_launches(trace):
        edges = _edges(windows[launches.device])
        for at, depth in enumerate(launches.depth_over_time):
            yield QueuePart(device=launches.device, start_ns=edges[at], end_ns=edges[at + 1], depth=depth)


def bandwidth_over_time(trace: Trace) -> Iterator[BandwidthPart]:
    """The bytes that copies of each direction moved in each part of the window; parts without any are left out."""
    for work in device_work(trace):
        rows = work.counted[trace.kind[work.counted] == Kind.COPY]
        rows = rows[(trace.bytes[rows] > 0) & (trace.duration_ns[rows] > 0)]
        if not rows.size:
            continue
        edges = np.array(_edges(work)) + work.low
        ways = direction_of(trace, rows)
        for way in sorted(set(ways.tolist())):
            mine = rows[ways == way]
            start, end = trace.start_ns[mine], trace.end_ns[mine]
            rate = trace.bytes[mine] / (end - start)
            # The bytes that were moved before each edge: all of a copy that ended, its part of one that runs.
            upto = [float((np.clip(edge - start, 0, end - start) * rate).sum()) for edge in edges]
            for at, moved in enumerate(np.diff(upto).tolist()):
                if round(moved):
                    low, high = (int(edge - work.low) for edge in edges[at : at + 2])
                    yield BandwidthPart(
                        device=work.device,
                        direction=way,
                        start_ns=low,
                        end_ns=high,
                        bytes=round(moved),
                        bytes_per_s=moved / (high - low) * 1e9,
                    )


def _edges(work: DeviceWork) -> list[int]:
    """Where the parts of a window begin and end, from its start."""
    return [round(edge) for edge in np.linspace(0, work.high - work.low, POINTS + 1).tolist()]
