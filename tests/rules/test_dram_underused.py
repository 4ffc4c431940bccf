"""dram-underused: memory accesses limit a kernel while DRAM is below half of its peak; the busy cache is named."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.kernels import dram_underused


def test_memory_bound_below_half_of_dram_names_the_cache_that_is_busy(build: Any) -> None:
    by_l1 = build.kernel_profiles({"compute": 0.2, "memory": 0.9, "dram": 0.2, "l1": 0.9, "l2": 0.4})
    by_neither = build.kernel_profiles({"compute": 0.2, "memory": 0.45, "dram": 0.45, "l1": 0.2, "l2": 0.3})

    [finding] = build.findings(dram_underused, by_l1)
    assert "gets 20% of what the memory can deliver while L1 works at 90%" in finding.message
    assert finding.advice.startswith("L1 is the busy part")
    [finding] = build.findings(dram_underused, by_neither)
    assert finding.advice.startswith("Have more bytes in flight")


@pytest.mark.parametrize(
    "healthy",
    [
        {"compute": 0.2, "memory": 0.85, "dram": 0.85},
        {"compute": 0.6, "memory": 0.5, "dram": 0.2},
        {"compute": 0.1, "memory": 0.2, "dram": 0.2},
        {"compute": 0.2, "memory": 0.9, "dram": None},
    ],
    ids=["streams as fast as the memory", "computes", "waits: another finding", "not measured"],
)
def test_memory_that_is_used_or_is_not_the_limit_is_not_reported(healthy: dict[str, Any], build: Any) -> None:
    assert build.findings(dram_underused, build.kernel_profiles(healthy)) == []
