"""uncoalesced-access: accesses use at most half of the sectors that they move."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.kernels import uncoalesced_access


def test_the_finding_has_the_used_part_and_the_hit_rates(build: Any) -> None:
    strided = {"compute": 0.1, "sector_use": 0.125, "sectors_per_request": 32.0, "l1_hit": 0.1, "l2_hit": 0.9}

    [finding] = build.findings(uncoalesced_access, build.kernel_profiles(strided))

    assert "uses 12% of the sectors" in finding.message
    values = {item.name: item.value for item in finding.evidence}
    assert (values["sectors per load"], values["L2 hits"]) == (32.0, 90.0)


@pytest.mark.parametrize(
    "healthy",
    [{"compute": 0.1, "sector_use": 0.9}, {"compute": 0.8, "sector_use": 0.2}, {"compute": 0.1, "sector_use": None}],
    ids=["neighbours", "computes", "not measured"],
)
def test_neighbouring_accesses_and_kernels_that_compute_are_not_reported(healthy: dict[str, Any], build: Any) -> None:
    assert build.findings(uncoalesced_access, build.kernel_profiles(healthy)) == []
