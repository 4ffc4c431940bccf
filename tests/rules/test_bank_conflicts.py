"""bank-conflicts: accesses to shared memory take turns, and the kernel uses it or waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.results.kernel_profiles import Stall
from perfkit.rules.kernels import bank_conflicts

WAITS = (Stall("mio_throttle", 0.6),)


@pytest.mark.parametrize("where", [{"l1": 0.7}, {"l1": 0.1, "stalls": WAITS}], ids=["busy", "waits"])
def test_half_of_the_turns_by_conflicts_are_reported_where_shared_memory_matters(
    where: dict[str, Any], build: Any
) -> None:
    [finding] = build.findings(bank_conflicts, build.kernel_profiles({"conflict_share": 0.75, **where}))

    assert "75% of its accesses to shared memory are turns of bank conflicts" in finding.message


@pytest.mark.parametrize(
    "healthy",
    [{"conflict_share": 0.2}, {"conflict_share": 0.9, "l1": 0.1}, {"conflict_share": None, "stalls": WAITS}],
    ids=["few", "shared memory is idle", "not measured"],
)
def test_few_conflicts_and_idle_shared_memory_are_not_reported(healthy: dict[str, Any], build: Any) -> None:
    assert build.findings(bank_conflicts, build.kernel_profiles(healthy)) == []
