"""Launches: their number, latency and queue depth, and the kernels that are shorter than their launch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perfkit.measures.device._device_work import DeviceWork, device_work
from perfkit.measures.results.device import Distribution, Launches
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, clip, joined, union

#: Points of the queue's depth over time: as many as a chart shows.
POINTS = 100

Floats = npt.NDArray[np.float64]


def measure_launches(trace: Trace) -> tuple[Launches, ...]:
    """The launches of each device that worked, in the window of `DeviceWork`; () where the trace has none."""
    found = (_measure(trace, work) for work in device_work(trace))
    return tuple(one for one in found if one is not None)


class _LaunchCalls(NamedTuple):
    """One row per API call that put work on the device: when it began and ended, and when its first work ran."""

    start: Ints
    end: Ints
    ran: Ints
    step: Ints


def _measure(trace: Trace, work: DeviceWork) -> Launches | None:
    linked = trace.launch[work.rows] >= 0
    rows, step = work.rows[linked], work.step[linked]
    if not rows.size:
        return None
    # Rows are in order of start, so the first of each launch is what ran first: a graph launches many at once.
    launch, first, place = np.unique(trace.launch[rows], return_index=True, return_inverse=True)
    calls = _LaunchCalls(trace.start_ns[launch], trace.end_ns[launch], trace.start_ns[rows[first]], step[first])
    latency = np.maximum(calls.ran - calls.end, 0)

    alone = np.bincount(place)[place] == 1
    kernel = trace.kind[rows] == Kind.KERNEL
    call = trace.launch[rows]
    short = kernel & alone & (trace.duration_ns[rows] < trace.end_ns[call] - trace.start_ns[call])

    queued = union(calls.start, np.maximum(calls.ran, calls.start))
    pending = joined(clip(queued, work.low, work.high), work.busy)
    # A launch that opens a block of pending work found the device with nothing to run and nothing to come.
    opening = np.append(pending.starts, np.iinfo(np.int64).max)
    drained = opening[np.searchsorted(pending.starts, calls.start)] == calls.start
    per_step = np.bincount(calls.step[calls.step >= 0], minlength=work.steps.row.size)
    return Launches(
        device=work.device,
        steps=max(1, work.steps.row.size),
        count=launch.size,
        work=rows.size,
        per_step=tuple(per_step.tolist()) if work.steps.row.size else (),
        call_ns=int((calls.end - calls.start).sum()),
        latency_ns=_spread(latency),
        kernels=int(kernel.sum()),
        short_kernels=int(short.sum()),
        drained=int(drained.sum()),
        starved_ns=work.high - work.low - pending.length_ns,
        depth=_depth(calls, work),
        depth_over_time=tuple(_mean_depths(calls, work)),
    )


def _spread(values: Ints) -> Distribution:
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Distribution(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values.max()))


def _depth(calls: _LaunchCalls, work: DeviceWork) -> Distribution:
    """How many launches waited for their work to begin: percentiles over time."""
    begin, end = np.clip(calls.start, work.low, work.high), np.clip(calls.ran, work.low, work.high)
    end = np.maximum(begin, end)
    times = np.concatenate((np.array([work.low]), begin, end, np.array([work.high])))
    change = np.zeros(times.size, np.int64)
    change[1:-1] = np.repeat(np.array([1, -1]), begin.size)
    order = np.argsort(times, kind="stable")
    depth = np.cumsum(change[order])[:-1]
    length = np.diff(times[order])
    by_depth = np.bincount(depth, weights=length)
    reached = np.cumsum(by_depth)
    p50, p90, p99 = (float(np.searchsorted(reached, share * reached[-1])) for share in (0.5, 0.9, 0.99))
    mean = float((by_depth * np.arange(by_depth.size)).sum() / max(reached[-1], 1))
    return Distribution(mean=mean, p50=p50, p90=p90, p99=p99, max=float(np.flatnonzero(by_depth).max(initial=0)))


def _mean_depths(calls: _LaunchCalls, work: DeviceWork) -> list[float]:
    """The mean depth in each of `POINTS` equal parts of the window."""
    edges = np.linspace(0, work.high - work.low, POINTS + 1)
    waited = _time_since(np.sort(calls.start) - work.low, edges)
    waited -= _time_since(np.sort(np.maximum(calls.ran, calls.start)) - work.low, edges)
    return [round(depth, 3) for depth in (np.diff(waited) / (edges[1] or 1.0)).tolist()]


def _time_since(begun: Ints, times: Floats) -> Floats:
    """The sum, over all that began before each time, of the time since then."""
    total = np.concatenate((np.zeros(1), np.cumsum(begun, dtype=np.float64)))
    count = np.searchsorted(begun, times, side="left")
    return count * times - total[count]
