"""divergent-warps: few threads of a warp are active while instructions are what the kernel waits for."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.kernels import divergent_warps


def test_the_finding_has_the_active_threads_and_what_they_leave(build: Any) -> None:
    [finding] = build.findings(divergent_warps, build.kernel_profiles({"name": "rays", "threads_per_warp": 8.38}))

    assert "only 8.4 of the 32 threads of a warp are active" in finding.message
    assert {item.name: item.value for item in finding.evidence}["instructions at most saved"] == pytest.approx(73.8)


@pytest.mark.parametrize(
    "healthy",
    [{"threads_per_warp": 30.2}, {"threads_per_warp": 8.0, "dram": 0.8}, {"threads_per_warp": None}],
    ids=["full warps", "the memory is the limit", "not measured"],
)
def test_full_warps_and_kernels_at_the_memorys_peak_are_not_reported(healthy: dict[str, Any], build: Any) -> None:
    assert build.findings(divergent_warps, build.kernel_profiles(healthy)) == []
