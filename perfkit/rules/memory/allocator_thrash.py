"""The device's allocator requests memory from the driver in every step.

Problem: torch caches freed memory and reuses it, so after the first steps no step should ask the driver for memory.
`cudaMalloc` takes a tenth of a millisecond to several, `cudaFree` waits for the device, and a retry releases the whole
cache, waits, and asks again.

How it shows: `num_alloc_retries` or `num_device_alloc` rise after the first 50 steps; or, in a trace without these
counters, the device is idle in "allocation" in each of at least three steps.

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
still grows does not reach, and 5% of the step unless there were retries. A cache that grows may ask in two steps of a
trace; three is chosen. Not run on a GPU yet.
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

_ADVICE = "Set PYTORCH_ALLOC_CONF=expandable_segments:True, remove empty_cache() from the loop, use less memory."
_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree")
#: Calls per step from which on they are more than what remains of the start (chosen).
_OFTEN = 0.1
#: Steps of a trace that all have to wait for the driver where no counter tells it (chosen).
_STEPS = 3
#: The low end of the saving as a share of the cost (chosen).
_LOW = 0.5


def check(
    step: StepBudget, typical: TypicalStep | None = None, api_calls: tuple[ApiCall, ...] = ()
) -> Iterator[Finding]:
    """Find allocations from the driver in steady state, and what they cost."""
    if typical is None or typical.device_allocs is None:
        yield from _in_each_step(step, api_calls)
        return
    retries, allocs = typical.alloc_retries or 0, typical.device_allocs
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
        advice=_ADVICE,
        confidence="high" if cost is not None else "medium",
        evidence=(
            Evidence("retries", retries, "", source),
            Evidence("cudaMalloc calls", allocs, "", source),
            Evidence.ms("idle in allocation", cost, "trace" if cost is not None else "needs a trace"),
        ),
    )


def _in_each_step(step: StepBudget, api_calls: tuple[ApiCall, ...]) -> Iterator[Finding]:
    """Find steps of a trace that all wait for the driver to allocate."""
    device = step.device
    steps = device.per_step if device is not None else ()
    if device is None or len(steps) < _STEPS or not all(one.causes.get("allocation") for one in steps):
        return
    cost = step.of_device(device.causes["allocation"])
    if step.is_negligible(cost):
        return
    calls = sum(row.count for row in api_calls if row.name in _CALLS)
    yield step.finding(
        cost=cost,
        saving=(_LOW * cost, cost),
        message=(
            f"In each of the {len(steps)} traced steps the device waits while the host allocates or frees its "
            f"memory: {step.shown(cost)}."
        ),
        advice=_ADVICE,
        confidence="medium",
        evidence=(
            Evidence.ms("idle in allocation", cost, "trace"),
            Evidence("calls of cudaMalloc and cudaFree", calls, "", "trace"),
        ),
    )
