"""allocator-thrash: requests to the driver in steady state cost the idle time or the calls of the trace."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.measures.results.device import DeviceStep
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


def test_a_trace_without_counters_shows_steps_that_all_wait_for_the_driver(build: Any) -> None:
    def found(*waits_ms: int) -> list[Any]:
        device = build.device(1000, compute=800, causes={"allocation": sum(waits_ms), "operators": 50})
        steps = [device_step(step, ms) for step, ms in enumerate(waits_ms)]
        return list(build.findings(allocator_thrash, msgspec.structs.replace(device, per_step=tuple(steps))))

    [finding] = found(50, 50, 50)
    assert finding.confidence == "medium"
    assert "each of the 3 traced steps" in finding.message
    assert found(75, 75) == []  # a cache that still grows
    assert found(75, 75, 0) == []


def device_step(step: int, allocation_ms: int) -> DeviceStep:
    causes = {"allocation": allocation_ms * MS} if allocation_ms else {}
    zero = dict.fromkeys(DeviceStep.__struct_fields__, 0)
    return DeviceStep(**{**zero, "step": step, "causes": causes})  # type: ignore[arg-type]


def test_without_a_cause_of_idle_time_the_cost_is_the_driver_calls(build: Any) -> None:
    step = msgspec.structs.replace(build.step(100, forward=100), alloc_retries=0, device_allocs=90)
    calls = ApiCall(name="cudaMalloc", count=80, total_ns=400 * MS, mean_ns=1, deviation_ns=0, min_ns=1, max_ns=1)

    [finding] = build.findings(allocator_thrash, step, build.traced_step(100, forward=100), calls)

    assert finding.cost_ns == 10 * MS
