"""The device work of a trace inside the measured window: which steps launched it, and what kind it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit.measures._trace_cache import once
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import Kind, ProfilerSteps, Trace
from perfkit.trace.intervals import Bools, Ints, Union, clip, joined, union

#: Kernels that communicate: NCCL's and RCCL's, and those of libraries that write their own.
COMMUNICATION = re.compile(
    r"nccl|rccl|nvshmem|deep_ep|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce"
    r"|multimem|Broadcast_RING|SendRecv|::ep::internode|::ep::intranode",
    re.IGNORECASE,
)
#: A launch of many kernels at once, whose ops the trace does not show.
GRAPH_LAUNCH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")


class DeviceWork(NamedTuple):
    """What one device did in the window.

    ``everything`` are all its rows, ``rows`` those that reach into the window, both in order of start; ``step``
    is for each of ``rows`` the index of the step that launched it, -1 for none. ``bounds`` cuts the window into one
    part per step: a part ends where the step has ended on the host and all that it launched on the device,
    so device work that runs late is the work of its own step. Without steps the window is one part.
    The unions are clipped to the window. ``counted`` are the rows that the steps launched, and those of the window
    whose launch is not in the trace: what tables count. Without steps it is everything.
    """

    device: int
    everything: Ints
    rows: Ints
    step: Ints
    is_communication: Bools
    steps: ProfilerSteps
    bounds: Ints
    compute: Union
    communication: Union
    copying: Union
    memset: Union
    busy: Union
    counted: Ints

    @property
    def low(self) -> int:
        """Start of the window."""
        return int(self.bounds[0])

    @property
    def high(self) -> int:
        """End of the window."""
        return int(self.bounds[-1])


@once
def device_work(trace: Trace) -> tuple[DeviceWork, ...]:
    """The work of each device that worked.

    The window reaches over the steps, from the end of the work launched before to the end of that launched in them,
    since a device runs late; without steps over all the device's work.
    """
    return tuple(_find(trace))


@once
def counted_work(trace: Trace) -> Ints:
    """The device work of the steps on all devices (`DeviceWork.counted`), in the order of the file."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *(work.counted for work in device_work(trace))]))


def communicates(trace: Trace, rows: Ints) -> Bools:
    """Which of these rows are kernels that communicate."""
    return np.asarray((trace.kind[rows] == int(Kind.KERNEL)) & _communicating(trace)[trace.name[rows]], bool)


@once
def _communicating(trace: Trace) -> Bools:
    """A mask of names, by code: those of kernels that communicate."""
    hit = np.zeros(len(trace.names), bool)
    # Names of kernels are long, and there are many others.
    for code in np.flatnonzero(np.bincount(trace.name[trace.device_rows])).tolist():
        hit[code] = COMMUNICATION.search(trace.names[code]) is not None
    return hit


def _find(trace: Trace) -> Iterator[DeviceWork]:
    rows = trace.device_rows
    if not rows.size:
        return
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    steps = whole_steps(trace)
    talks = communicates(trace, rows)
    launch = trace.launch[rows]
    step = np.where(launch >= 0, step_of(steps, trace.start_ns[launch]), -1)
    for device in np.unique(trace.device[rows]).tolist():
        here = trace.device[rows] == device
        yield _work_of(trace, device, rows[here], step[here], talks[here], steps)


def _work_of(trace: Trace, device: int, rows: Ints, step: Ints, talks: Bools, steps: ProfilerSteps) -> DeviceWork:
    starts, ends, kind = trace.start_ns[rows], trace.end_ns[rows], trace.kind[rows]
    bounds = _bounds(starts, ends, step, steps)
    low, high = int(bounds[0]), int(bounds[-1])

    def covered(chosen: Bools) -> Union:
        return clip(union(starts[chosen], ends[chosen]), low, high)

    is_kernel = kind == Kind.KERNEL
    parts = (
        covered(is_kernel & ~talks),
        covered(is_kernel & talks),
        covered(kind == Kind.COPY),
        covered(kind == Kind.MEMSET),
    )
    inside = (ends > low) & (starts < high)
    of_steps = (step >= 0) | (trace.launch[rows] < 0) if steps.row.size else np.ones(rows.size, bool)
    return DeviceWork(
        device=device,
        everything=rows,
        rows=rows[inside],
        step=step[inside],
        is_communication=talks[inside],
        steps=steps,
        bounds=bounds,
        compute=parts[0],
        communication=parts[1],
        copying=parts[2],
        memset=parts[3],
        busy=joined(*parts),
        counted=rows[inside & of_steps],
    )


def _bounds(starts: Ints, ends: Ints, step: Ints, steps: ProfilerSteps) -> Ints:
    if not steps.row.size:
        return np.array([starts.min(), ends.max()])
    reach = steps.end_ns.copy()
    launched = step >= 0
    np.maximum.at(reach, step[launched], ends[launched])
    low = steps.start_ns[0]
    if launched.any():
        # A device that runs late begins the first step after it has done what was launched before.
        first = starts[launched].min()
        before = ends[~launched & (starts < first)].max(initial=low)
        low = max(low, min(first, before))
    return np.maximum.accumulate(np.concatenate(([low], reach)))
