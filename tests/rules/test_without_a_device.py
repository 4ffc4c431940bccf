"""Rules on a device report nothing where a run or trace holds no device work."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.device import copies_dominate, cuda_graph_candidate, launch_bound, low_occupancy, small_grid
from perfkit.rules.ranks import exposed_communication


@pytest.mark.parametrize(
    "rule",
    [copies_dominate, cuda_graph_candidate, exposed_communication, launch_bound, low_occupancy, small_grid],
    ids=lambda rule: rule.ID,
)
def test_without_a_device_a_rule_on_it_reports_nothing(rule: Any, build: Any) -> None:
    kernels = build.kernels(("add", "elementwise", 900), occupancy=0.1, sm_efficiency=0.1)

    assert build.findings(rule, build.step(100, forward=100), kernels) == []
