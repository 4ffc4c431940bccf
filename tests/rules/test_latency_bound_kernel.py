"""latency-bound-kernel: far below both peaks a kernel waits; its stall or its small grid is named."""

from __future__ import annotations

from typing import Any

from perfkit.measures.results.kernel_profiles import Stall
from perfkit.rules.kernels import latency_bound_kernel


def test_a_kernel_below_30_percent_of_both_is_latency_bound_and_its_stall_is_named(build: Any) -> None:
    stalls = (Stall("barrier", 0.48), Stall("wait", 0.1))
    waiting = build.kernel_profiles({"compute": 0.08, "memory": 0.29, "stalls": stalls})

    [finding] = build.findings(latency_bound_kernel, waiting)

    assert "reaches 8% of the compute and 29% of the memory throughput" in finding.message
    assert "Most of the waiting is barrier (48% of a warp's time)." in finding.message
    assert finding.advice.startswith("Its warps wait for each other")
    assert (finding.confidence, finding.range) == ("high", "kernel")


def test_at_30_percent_of_one_of_them_a_kernel_is_not_latency_bound(build: Any) -> None:
    assert build.findings(latency_bound_kernel, build.kernel_profiles({"compute": 0.30, "memory": 0.05})) == []


def test_a_grid_that_does_not_fill_the_device_is_the_cause_and_not_its_stall(build: Any) -> None:
    stalls = (Stall("no_instruction", None),)
    small = build.kernel_profiles({"compute": 0.02, "memory": 0.03, "waves": 0.4, "stalls": stalls})

    [finding] = build.findings(latency_bound_kernel, small)

    assert "the grid fills the device only 0.40 times" in finding.message
    assert "larger batches" in finding.advice
