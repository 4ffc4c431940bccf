"""launch-bound: a device that is idle because the host launches late is reported; other idle time is not."""

from __future__ import annotations

from typing import Any

from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.steps import TracedStep, TypicalStep
from perfkit.rules.device import launch_bound

MS = 1_000_000


def test_a_device_that_waits_for_launches_is_launch_bound(build: Any) -> None:
    device = build.device(1000, compute=600, causes={"operators": 200, "python": 100, "data loading": 100})

    [finding] = build.findings(launch_bound, build.traced_step(100, forward=100), device)

    assert finding.cost_ns == 30 * MS
    assert finding.message == (
        "The device waits 30% of the step for launches, most of it inside operators (mean kernel 50 µs)."
    )


def test_the_slowdown_by_recording_is_not_launch_bound(build: Any) -> None:
    device = build.device(1000, compute=700, causes={"operators": 300})

    assert build.findings(launch_bound, build.step(70, forward=70), build.traced_step(100, forward=100), device) == []


def test_a_recording_lengthens_what_the_device_waits_for_launches_and_nothing_else(build: Any) -> None:
    # In the window 20 of 100 ms on the device, 20 for data and 60 for launches; outside of it the step takes 70 ms.
    device = build.device(1000, compute=200, causes={"operators": 400, "python": 200, "data loading": 200})
    found = Measurements("run", build.step(70, forward=70), build.traced_step(100, forward=100), device)

    budget = StepBudget.from_measurements(found)
    [finding] = build.findings(launch_bound, *found.all(TypicalStep), *found.all(TracedStep), device)

    assert budget is not None
    assert budget.device is not None
    assert budget.of_device(budget.device.compute_ns) == 20 * MS
    assert budget.of_device(budget.device.causes["data loading"]) == 20 * MS
    assert finding.cost_ns == 30 * MS
    assert sum(one.ns for one in budget.device.idle) == sum(budget.device.causes.values()) == budget.device.idle_ns


def test_a_window_that_is_slower_for_other_reasons_is_scaled_as_a_whole(build: Any) -> None:
    device = build.device(1000, compute=500, causes={"data loading": 500})
    found = Measurements("run", build.step(80, data=40, forward=40), build.traced_step(100, forward=100), device)

    budget = StepBudget.from_measurements(found)

    assert budget is not None
    assert budget.of_device(device.compute_ns) == 40 * MS


def test_idle_for_other_reasons_is_not_launch_bound(build: Any) -> None:
    device = build.device(1000, compute=500, causes={"data loading": 400, "sync": 80, "operators": 20})

    assert build.findings(launch_bound, device) == []
