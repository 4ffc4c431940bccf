"""launch-bound: a device that is idle because the host launches late is reported; other idle time is not."""

from __future__ import annotations

from typing import Any

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


def test_idle_for_other_reasons_is_not_launch_bound(build: Any) -> None:
    device = build.device(1000, compute=500, causes={"data loading": 400, "sync": 80, "operators": 20})

    assert build.findings(launch_bound, device) == []
