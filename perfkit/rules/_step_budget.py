"""The whole that a lost time is a part of, and how large a part must be to be told.

No change to a training loop gains more than the step it changes (Amdahl's law), so every rule counts
against one number: the mean step, or the whole recording where no steps are marked in it.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from perfkit.findings import Severity
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.measured import Measured
from perfkit.run.records import Phase

#: Parts of a step below this share are not told: torch-tb-profiler asked for loader workers at 5% too,
#: and the mean step of two equal runs on a shared machine differs by about as much.
NEGLIGIBLE = 0.05

#: From this share on a finding is critical: the same training takes a third longer than it has to (1 / 0.75).
CRITICAL = 0.25

#: What a part takes with it that is beyond its own time: the rest finds caches and allocators as it left them. With a
#: program and its corrected twin run in turns (benchmarks/bench_verdict.py), the gain of taking out a part whose time
#: was measured was 0.9 to 1.2 times that time for three of four.
_BEYOND = 0.15

#: A part that takes at least half is what the whole is about.
MAJORITY = 0.5


class Whole(NamedTuple):
    """What lost times are part of: ``wall_ns`` of one "step" (mean), or of the "recording" as a whole."""

    wall_ns: int
    per: Literal["step", "recording"]
    source: str


class Part(NamedTuple):
    """A part of the whole in ns, with where the number comes from."""

    ns: int
    source: str


def whole_of(measured: Measured) -> Whole | None:
    """The mean step outside windows, else of the trace, else the recording; None where nothing has a length."""
    for step in (measured.step, measured.trace_step):
        if step is not None and step.wall_ns > 0:
            return Whole(step.wall_ns, "step", step.source)
    device = busiest_device(measured)
    if device is not None:
        return Whole(device.window_ns, "recording", "first to last device event")
    if measured.trace is not None and measured.trace.span_ns > 0:
        return Whole(measured.trace.span_ns, "recording", "first to last event")
    return None


def busiest_device(measured: Measured) -> DeviceTime | None:
    """The device that did most: in a trace of one rank it is that rank's own."""
    return max((d for d in measured.devices if d.window_ns > 0), key=lambda d: d.busy_ns, default=None)


def device_part(ns: int, device: DeviceTime, whole: Whole) -> int:
    """Device time as part of the whole, by its share of the device's window.

    By share and not divided by steps: the window may hold time between steps, and the trace's steps are
    slower than the steps outside windows that the whole is taken from.
    """
    return round(whole.wall_ns * min(1.0, ns / device.window_ns))


def with_beyond(ns: float, measured: Measured, whole: Whole, error: float = 0.0) -> int:
    """The most that goes with a time: what lies beyond it where a CPU computes, and the error of the time itself.

    ``error`` is a share of the time, of one deviation. Both are errors of their own: they add as squares.
    """
    beyond = 0.0 if on_device(measured) else _BEYOND
    return min(whole.wall_ns, round(ns * (1 + math.hypot(beyond, error))))


def on_device(measured: Measured) -> bool:
    """Whether a device computes: the trace or the run holds one."""
    return busiest_device(measured) is not None or (measured.rank is not None and bool(measured.rank.devices))


def trace_scale(measured: Measured) -> float:
    """What a host time of the trace is multiplied by, to count by its share of the trace's step.

    Recording slows a step, and on a shared machine so does what else is running; 1.0 where the trace is all there is.
    """
    if measured.step is None or measured.trace_step is None or measured.trace_step.wall_ns <= 0:
        return 1.0
    return measured.step.wall_ns / measured.trace_step.wall_ns


def phase_part(measured: Measured, phase: Phase, whole: Whole) -> Part | None:
    """The mean time of a phase per step: from the step rows, else from the trace; None where neither can tell."""
    if measured.step is not None and (ns := getattr(measured.step.phases_ns, phase)) is not None:
        return Part(min(ns, whole.wall_ns), measured.step.source)
    step = measured.trace_step
    if step is not None and (ns := getattr(step.phases_ns, phase)) is not None:
        scaled = min(round(ns * trace_scale(measured)), whole.wall_ns)
        return Part(scaled, step.source)
    return None


def severity_of(cost_ns: int, whole: Whole) -> Severity:
    """Grave from a quarter of the whole, a warning from 5% of it."""
    share = cost_ns / whole.wall_ns
    return "critical" if share >= CRITICAL else "warning" if share >= NEGLIGIBLE else "info"


def computing(measured: Measured, whole: Whole) -> dict[str, Part]:
    """The computing parts of the whole: compute kernels of the device, else the phases that compute; may be empty."""
    device = busiest_device(measured)
    if device is not None:
        source = f"device {device.device}: union of compute kernels"
        return {"compute kernels": Part(device_part(device.compute_ns, device, whole), source)}
    phases: tuple[Phase, ...] = ("forward", "backward", "optimizer")
    return {phase: part for phase in phases if (part := phase_part(measured, phase, whole)) is not None}
