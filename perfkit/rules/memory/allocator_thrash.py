"""The device's allocator requests memory from the driver in every step.

Problem: torch caches freed memory and reuses it, so after the first steps no step should ask the driver for memory.
`cudaMalloc` takes a tenth of a millisecond to several, `cudaFree` waits for the device, and a retry releases the whole
cache, waits, and asks again.

How it shows: `num_alloc_retries` or `num_device_alloc` rise after the first 50 steps; the device is idle in
"allocation".

Causes: memory nearly full; sizes that differ in every step and fragment the cache; `torch.cuda.empty_cache()` in the
loop; several processes on one device.

Fix: let blocks grow instead of splitting them, and do not empty the cache.

    PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
    # no torch.cuda.empty_cache() in the loop
    batch = pad_to_multiple(batch, 64)        # few different sizes

Saving: at most the time the device was idle while the host allocated, or else the time in the driver's calls, both by
their share of the trace's step. The low end is half of it (chosen): a part of the wait may have other reasons. Without
a trace the cost is not known.

Source: torch's notes on CUDA memory management. The threshold is one call in ten steps (chosen), which a cache that
still grows does not reach, and 5% of the step unless there were retries. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.kernels import ApiCall
from perfkit.measures.results.steps import TypicalStep

ID = "allocator-thrash"
CLAIMS = (Selector(owner="idle", names=("allocation",)),)

_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree")
#: Calls per step from which on they are more than what remains of the start (chosen).
_OFTEN = 0.1
#: The low end of the saving as a share of the cost (chosen).
_LOW = 0.5


def check(step: StepBudget, typical: TypicalStep, api_calls: tuple[ApiCall, ...] = ()) -> Iterator[Finding]:
    """Find allocations from the driver in steady state, and what they cost."""
    retries, allocs = typical.alloc_retries or 0, typical.device_allocs or 0
    if not retries and allocs < _OFTEN * typical.steps:
        return
    cost = None
    calls_ns = sum(row.total_ns for row in api_calls if row.name in _CALLS)
    if step.device is not None and "allocation" in step.device.causes:
        cost = step.of_device(step.device.causes["allocation"])
    elif calls_ns and step.traced is not None and step.traced.steps:
        cost = min(step.wall_ns, round(calls_ns / step.traced.steps * step.trace_scale))
    if cost is not None and step.is_negligible(cost) and not retries:
        return
    costs = f", which costs {ms(cost)} of the {ms(step.wall_ns)} {step.per}" if cost is not None else ""
    source = f"{typical.source}, after the first 50"
    yield step.finding(
        cost=cost,
        saving=(_LOW * cost, cost) if cost is not None else None,
        message=f"After the start the allocator called cudaMalloc {allocs} times and retried {retries} times{costs}.",
        advice="Set PYTORCH_ALLOC_CONF=expandable_segments:True, remove empty_cache() from the loop, use less memory.",
        confidence="high" if cost is not None else "medium",
        evidence=(
            Evidence("retries", retries, "", source),
            Evidence("cudaMalloc calls", allocs, "", source),
            Evidence.ms("idle in allocation", cost, "trace" if cost is not None else "needs a trace"),
        ),
    )
