"""allocator-thrash: requests to the driver in steady state cost the idle time or the calls of the trace."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.measures.results.kernels import ApiCall
from perfkit.rules.memory import allocator_thrash

MS = 1_000_000


def test_the_cost_is_the_idle_time_in_allocation(build: Any) -> None:
    step = msgspec.structs.replace(build.step(100, forward=100), alloc_retries=3, device_allocs=90)
    device = build.device(1000, compute=800, causes={"allocation": 150, "operators": 50})

    [finding] = build.findings(allocator_thrash, step, device)
    [without_trace] = build.findings(allocator_thrash, step)

    assert (finding.cost_ns, finding.saving_low_ns) == (15 * MS, round(7.5 * MS))
    assert (without_trace.cost_ns, without_trace.severity) == (None, "warning")
    calm = msgspec.structs.replace(step, alloc_retries=0, device_allocs=2)
    assert build.findings(allocator_thrash, calm, device) == []


def test_without_a_cause_of_idle_time_the_cost_is_the_driver_calls(build: Any) -> None:
    step = msgspec.structs.replace(build.step(100, forward=100), alloc_retries=0, device_allocs=90)
    calls = ApiCall(name="cudaMalloc", count=80, total_ns=400 * MS, mean_ns=1, deviation_ns=0, min_ns=1, max_ns=1)

    [finding] = build.findings(allocator_thrash, step, build.traced_step(100, forward=100), calls)

    assert finding.cost_ns == 10 * MS
