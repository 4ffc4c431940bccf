"""The time of each step of a trace: whole, by phase, and in its ops, kernels, ranges and device parts, by name.

Single steps show how much of a difference between two traces is noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit.measures._nested import sum_by, times_by_owner
from perfkit.measures._rows import mask_of
from perfkit.measures.device._device_work import counted_work
from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.steps._phase_times import phase_times
from perfkit.measures.steps._trace_steps import step_of, steps_of_ops, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Codes, Ints, clip


class StepSamples(NamedTuple):
    """Times in ns, one for each step of the trace; by kind of difference and by name."""

    steps: int
    times: dict[tuple[str, str], Ints]


def step_samples(trace: Trace) -> StepSamples | None:
    """The times of each step; None for a trace without steps."""
    steps = whole_steps(trace)
    if not steps.row.size:
        return None
    return StepSamples(int(steps.row.size), dict(_samples(trace)))


def _samples(trace: Trace) -> Iterator[tuple[tuple[str, str], Ints]]:
    steps = whole_steps(trace)
    n = int(steps.row.size)
    yield ("step", "step"), steps.end_ns - steps.start_ns
    rest = (steps.end_ns - steps.start_ns).copy()
    for phase, of in phase_times(trace).items():
        each = [clip(of, low, high).length_ns for low, high in zip(steps.start_ns, steps.end_ns, strict=True)]
        rest -= np.array(each, np.int64)
        yield ("phase", phase), np.array(each, np.int64)
    yield ("phase", "other"), rest
    rows, step = steps_of_ops(trace)
    rows, step = rows[step >= 0], step[step >= 0]
    if rows.size:
        index = np.full(len(trace) + 1, -1, np.int64)
        index[rows] = np.arange(rows.size)
        own = times_by_owner(trace, rows, index[trace.above(mask_of(trace, rows))[rows]])
        yield from _by_name(trace, "op", trace.name[rows], step, own, n)
    work = counted_work(trace)
    work = work[(trace.kind[work] == Kind.KERNEL) & (trace.launch[work] >= 0)]
    launched = step_of(steps, trace.start_ns[trace.launch[work]])
    yield from _by_name(trace, "kernel", trace.name[work], launched, trace.duration_ns[work], n)
    ranges = trace.ranges
    inside = step_of(steps, trace.start_ns[ranges])
    ranges, inside = ranges[inside >= 0], inside[inside >= 0]
    yield from _by_name(trace, "range", trace.name[ranges], inside, trace.duration_ns[ranges], n)
    yield from _device_parts(trace, n)


def _by_name(
    trace: Trace, kind: str, name: Codes, step: Ints, ns: Ints, steps: int
) -> Iterator[tuple[tuple[str, str], Ints]]:
    if not name.size:
        return
    names, place = np.unique(name, return_inverse=True)
    sums = sum_by(place.reshape(-1) * steps + step, ns, names.size * steps).reshape(names.size, steps)
    for at, code in enumerate(names.tolist()):
        yield (kind, trace.names[code]), sums[at]


def _device_parts(trace: Trace, steps: int) -> Iterator[tuple[tuple[str, str], Ints]]:
    """What owns the device's time in each step: computing, communication, copies, and idle time by its cause."""
    for device in measure_device_time(trace)[:1]:
        parts = {
            "computing": [one.compute_ns for one in device.per_step],
            "communication": [one.exposed_communication_ns for one in device.per_step],
            "copies": [one.exposed_copy_ns for one in device.per_step],
        }
        for cause in device.causes:
            parts[f"idle ({cause})"] = [one.causes.get(cause, 0) for one in device.per_step]
        for name, each in parts.items():
            if len(each) == steps:
                yield ("owner", name), np.array(each, np.int64)
