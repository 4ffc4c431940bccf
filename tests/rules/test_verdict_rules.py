"""The healthy end and the open one."""

from __future__ import annotations

from typing import Any

from perfkit.measures.results.measured import TraceFacts
from perfkit.rules.verdicts import cannot_tell, compute_bound


def facts(**fields: Any) -> TraceFacts:
    defaults: dict[str, Any] = {
        "path": "t.json",
        "format": "kineto",
        "events": 100,
        "device_events": 0,
        "devices": (),
        "steps": 0,
        "span_ns": 1_000_000,
        "rank": None,
        "world_size": None,
        "has_stacks": False,
        "has_shapes": False,
        "lost": (),
    }
    return TraceFacts(**{**defaults, **fields})


def test_a_step_that_computes_is_compute_bound(build: Any) -> None:
    measured = build.measured(step=build.step(100, data=2, forward=30, backward=50, optimizer=15, other=3))

    [finding] = compute_bound.check(measured)

    assert finding.message == ("Computing takes 95% of the 100 ms step (forward 30%, backward 50%, optimizer 15%).")
    assert finding.cost_ns is None
    assert list(cannot_tell.check(measured)) == []


def test_a_device_busy_with_kernels_is_compute_bound(build: Any) -> None:
    device = build.device(1000, compute=900, causes={"operators": 100})

    [finding] = compute_bound.check(build.measured(devices=(device,)))

    assert "Computing takes 90% of the 1.0 s recording" in finding.message


def test_a_step_that_waits_is_not_compute_bound(build: Any) -> None:
    assert list(compute_bound.check(build.measured(step=build.step(100, data=60, forward=40)))) == []


def test_a_trace_without_steps_and_device_cannot_tell(build: Any) -> None:
    [finding] = cannot_tell.check(build.measured(trace=facts()))

    assert finding.message == (
        "Cannot tell: the trace marks no steps and holds no device events, so no time can be counted per step."
    )


def test_nothing_recorded_cannot_tell(build: Any) -> None:
    [finding] = cannot_tell.check(build.measured())

    assert "no step and no event" in finding.message


def test_a_step_in_the_dark_cannot_tell(build: Any) -> None:
    [finding] = cannot_tell.check(build.measured(step=build.step(100, data=1, forward=9, other=90)))

    assert "90% of it lies outside them" in finding.message


def test_idle_without_a_rule_names_its_cause(build: Any) -> None:
    device = build.device(1000, compute=300, causes={"allocation": 600, "sync": 100})

    [finding] = cannot_tell.check(build.measured(devices=(device,)))

    assert "idle 70% of the recording, most of it in 'allocation' (60%)" in finding.message
