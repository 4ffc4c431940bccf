"""copies-dominate: copies that nothing hides are reported; those hidden under compute are not."""

from __future__ import annotations

from typing import Any

from perfkit.rules.device import copies_dominate


def test_a_busy_device_that_mostly_copies_is_not_healthy(build: Any) -> None:
    device = build.device(1000, compute=150, copy=840, exposed_copy=830, pageable=800, causes={"operators": 10})

    [finding] = build.findings(copies_dominate, device)

    assert finding.severity == "critical"
    assert "most of them host to device, take 83% of the recording" in finding.message
    assert "pin_memory" in finding.advice


def test_copies_hidden_under_compute_are_not_reported(build: Any) -> None:
    device = build.device(1000, compute=900, copy=600, exposed_copy=20, causes={"operators": 80})

    assert build.findings(copies_dominate, device) == []
