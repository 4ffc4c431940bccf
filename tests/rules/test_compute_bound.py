"""compute-bound: a step that mostly computes is healthy."""

from __future__ import annotations

from typing import Any

from perfkit.rules.verdicts import cannot_tell, compute_bound


def test_a_step_that_computes_is_compute_bound(build: Any) -> None:
    step = build.step(100, data=2, forward=30, backward=50, optimizer=15, other=3)

    [finding] = build.findings(compute_bound, step)

    assert finding.message == "Computing takes 95% of the 100 ms step (forward 30%, backward 50%, optimizer 15%)."
    assert finding.cost_ns is None
    assert build.findings(cannot_tell, step) == []


def test_a_device_busy_with_kernels_is_compute_bound(build: Any) -> None:
    [finding] = build.findings(compute_bound, build.device(1000, compute=900, causes={"operators": 100}))

    assert "Computing takes 90% of the 1.0 s recording" in finding.message


def test_a_step_that_waits_is_not_compute_bound(build: Any) -> None:
    assert build.findings(compute_bound, build.step(100, data=60, forward=40)) == []
