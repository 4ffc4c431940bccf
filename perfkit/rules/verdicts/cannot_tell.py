"""What was recorded does not say where the time goes.

Problem: no verdict is possible, and a guess would be worse than saying so.

How it shows: nothing has a length; or there are neither steps nor device events; or most of the step
lies where nothing was measured; or the device was idle for a reason that no rule explains.

Causes: a trace without `ProfilerStep` ranges and without a device; a loop whose phases perfkit could
not see (no DataLoader, no optimizer, no `steps()`); a recording cut short or damaged; CUDA graphs
whose kernels were not recorded.

Fix: record the loop itself.

    with perfkit.profile("runs/train") as prof:
        for batch in prof.steps(loader):
            train_step(batch)

    prof.step()             # with torch.profiler alone: marks the steps that times are counted by

Gain: unknown, and null.

Source: half of the step in the dark is where the largest part can no longer be named with certainty.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import MAJORITY, Whole, busiest_device, computing, phase_part, whole_of

ID = "cannot-tell"

_RECORD = "Record the loop: perfkit run train.py, or perfkit.profile() with prof.steps(loader)."


def check(measured: Measured) -> Iterator[Finding]:
    """Say why there is no verdict; run when no problem with a price was found."""
    whole = whole_of(measured)
    reason = _reason(measured, whole)
    if reason is None:
        return
    advice = _RECORD if busiest_device(measured) is None else "Record more steps, with prof.step() after each."
    yield Finding(
        rule=ID,
        severity="info",
        message=f"Cannot tell: {reason}",
        advice=advice,
        confidence="high",
        evidence=tuple(_evidence(measured)),
    )


def _reason(measured: Measured, whole: Whole | None) -> str | None:
    if whole is None:
        return "nothing recorded here has a length: no step and no event."
    device = busiest_device(measured)
    if device is None and measured.step is None and measured.trace_step is None:
        return "the trace marks no steps and holds no device events, so no time can be counted per step."
    total_ns = sum(part.ns for part in computing(measured, whole).values())
    if total_ns >= MAJORITY * whole.wall_ns:
        return None
    if device is not None:
        cause = max(device.causes, key=lambda name: device.causes[name], default=None)
        idle = f"the device is idle {percent(device.idle_ns, device.window_ns)} of the {whole.per}"
        if cause is None or not device.idle_ns:
            return (
                f"compute kernels take {percent(total_ns, whole.wall_ns)} of the {whole.per}, nothing else stands out."
            )
        return f"{idle}, most of it in '{cause}' ({percent(device.causes[cause], device.window_ns)})."
    data = phase_part(measured, "data", whole)
    if data is not None and total_ns + data.ns >= MAJORITY * whole.wall_ns:
        # input-bound has looked at it and found no more than the price of a ready batch.
        return f"the {whole.per} is so short that handing over a batch, {ms(data.ns)}, is the largest part of it."
    other = phase_part(measured, "other", whole)
    dark = percent(other.ns, whole.wall_ns) if other is not None else "an unknown part"
    return f"the phases seen do not explain the step: {dark} of it lies outside them."


def _evidence(measured: Measured) -> Iterator[Evidence]:
    if measured.trace is not None:
        yield Evidence("events", measured.trace.events, "", measured.trace.format)
        yield Evidence("device events", measured.trace.device_events, "", measured.trace.format)
        yield Evidence("steps marked", measured.trace.steps, "", measured.trace.format)
    if measured.ops is not None:
        top = sorted(measured.ops.rows, key=lambda row: -row.self_ns)[:3]
        for row in top:
            yield Evidence(f"op {row.name}", round(row.self_ns / 1e6, 3), "ms", f"own time of {row.count} calls")
    device = busiest_device(measured)
    for cause, ns in device.causes.items() if device is not None else ():
        if ns:
            yield Evidence(f"idle, {cause}", round(ns / 1e6, 3), "ms", "the whole window")
