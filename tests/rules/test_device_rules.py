"""Rules that need a device: launches, copies, communication."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.device import copies_dominate, launch_bound
from perfkit.rules.ranks import exposed_communication

MS = 1_000_000


def test_a_device_that_waits_for_launches_is_launch_bound(build: Any) -> None:
    device = build.device(1000, compute=600, causes={"operators": 200, "python": 100, "data loading": 100})

    [finding] = launch_bound.check(build.measured(trace_step=build.step(100, forward=100), devices=(device,)))

    assert finding.cost_ns == 30 * MS
    assert finding.message == (
        "The device waits 30% of the step for launches, most of it inside operators (mean kernel 50 µs)."
    )


def test_what_recording_slowed_the_step_is_not_launch_bound(build: Any) -> None:
    device = build.device(1000, compute=700, causes={"operators": 300})
    measured = build.measured(
        step=build.step(70, forward=70), trace_step=build.step(100, forward=100), devices=(device,)
    )

    assert list(launch_bound.check(measured)) == []


def test_idle_for_other_reasons_is_not_launch_bound(build: Any) -> None:
    device = build.device(1000, compute=500, causes={"data loading": 400, "sync": 80, "operators": 20})

    assert list(launch_bound.check(build.measured(devices=(device,)))) == []


def test_a_busy_device_that_mostly_copies_is_not_healthy(build: Any) -> None:
    device = build.device(1000, compute=150, copy=840, exposed_copy=830, pageable=800, causes={"operators": 10})

    [finding] = copies_dominate.check(build.measured(devices=(device,)))

    assert finding.severity == "critical"
    assert "most of them host to device, take 83% of the recording" in finding.message
    assert "pin_memory" in finding.advice


def test_copies_hidden_under_compute_are_no_finding(build: Any) -> None:
    device = build.device(1000, compute=900, copy=600, exposed_copy=20, causes={"operators": 80})

    assert list(copies_dominate.check(build.measured(devices=(device,)))) == []


def test_long_communication_without_overlap_is_exposed(build: Any) -> None:
    device = build.device(1000, compute=500, communication=450, exposed_communication=450, causes={"operators": 50})

    [finding] = exposed_communication.check(build.measured(trace_step=build.step(100, forward=100), devices=(device,)))

    assert finding.cost_ns == 45 * MS
    assert finding.message.endswith("0% of all communication runs beside compute.")


def test_well_overlapped_communication_is_no_finding(build: Any) -> None:
    device = build.device(1000, compute=950, communication=800, exposed_communication=30, causes={"operators": 20})

    assert list(exposed_communication.check(build.measured(devices=(device,)))) == []


@pytest.mark.parametrize("rule", [copies_dominate, exposed_communication, launch_bound])
def test_without_a_device_a_device_rule_is_silent(rule: Any, build: Any) -> None:
    assert list(rule.check(build.measured(step=build.step(100, forward=100)))) == []
