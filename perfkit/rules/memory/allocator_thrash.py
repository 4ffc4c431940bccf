"""The device's allocator goes to the driver in every step.

Problem: torch keeps freed memory and hands it out again, so after the first steps no step should ask the driver
for memory. `cudaMalloc` takes a tenth of a millisecond to several, `cudaFree` waits for the device, and a retry
gives back everything that is kept, waits, and asks again.

How it shows: `num_alloc_retries` or `num_device_alloc` rise after the first 50 steps; the device is idle in
"allocation".

Causes: memory nearly full; sizes that differ in every step and split the kept blocks; `torch.cuda.empty_cache()`
in the loop; several processes on one device.

Fix: let blocks grow instead of splitting, and keep the cache.

    PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
    # no torch.cuda.empty_cache() in the loop
    batch = pad_to_multiple(batch, 64)        # few different sizes

Gain: the time the device was idle while the host allocated, or else the time in the driver's calls, both of the
trace by their share of its step. Low end: half, as where the driver is not asked some of the wait has other
reasons. Without a trace it is null.

Source: torch's notes on CUDA memory management. One call in ten steps is where a fragmented cache differs from
one that still grows. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE, busiest_device, device_part, severity_of, trace_scale, whole_of

ID = "allocator-thrash"

_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree")
#: Calls per step from which on it is no leftover of the start (see above).
_OFTEN = 0.1
_CERTAIN = 0.5


def check(measured: Measured) -> Iterator[Finding]:
    """Find allocations from the driver in steady state, and what they cost."""
    step, whole = measured.step, whole_of(measured)
    if step is None or whole is None:
        return
    retries, allocs = step.alloc_retries or 0, step.device_allocs or 0
    if not retries and allocs < _OFTEN * step.steps:
        return
    cost_ns = None
    device = busiest_device(measured)
    calls_ns = sum(row.total_ns for row in measured.api_calls if row.name in _CALLS)
    if device is not None and "allocation" in device.causes:
        cost_ns = device_part(device.causes["allocation"], device, whole)
    elif calls_ns and measured.trace_step is not None and measured.trace_step.steps:
        cost_ns = min(whole.wall_ns, round(calls_ns / measured.trace_step.steps * trace_scale(measured)))
    if cost_ns is not None and cost_ns < NEGLIGIBLE * whole.wall_ns and not retries:
        return
    costs = f", which costs {ms(cost_ns)} of the {ms(whole.wall_ns)} {whole.per}" if cost_ns is not None else ""
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole) if cost_ns is not None else "warning",
        message=(
            f"After the first steps the allocator asked the driver for memory {allocs} times "
            f"and retried {retries} times{costs}."
        ),
        advice="Set PYTORCH_ALLOC_CONF=expandable_segments:True, call no empty_cache() in the loop, leave room.",
        confidence="high" if cost_ns is not None else "medium",
        evidence=(
            Evidence("retries", retries, "", f"{step.source}, after the first 50"),
            Evidence("cudaMalloc calls", allocs, "", f"{step.source}, after the first 50"),
            Evidence(
                "idle in allocation",
                round(cost_ns / 1e6, 3) if cost_ns is not None else None,
                "ms",
                "trace" if cost_ns is not None else "no trace tells",
            ),
        ),
        cost_ns=cost_ns,
        saving_low_ns=round(_CERTAIN * cost_ns) if cost_ns is not None else None,
        saving_high_ns=cost_ns,
    )
