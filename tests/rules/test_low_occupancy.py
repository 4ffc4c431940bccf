"""low-occupancy: long kernels with few warps are reported, unless they are written for few or their grid is small."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.device import low_occupancy

MS = 1_000_000


def test_kernels_with_few_warps_could_run_at_twice_the_speed(build: Any) -> None:
    kernels = build.kernels(("layer_norm", "reduction", 600), ("add", "elementwise", 0), occupancy=0.12)

    [finding] = build.findings(low_occupancy, build.traced_step(100), build.device(1000, compute=1000), kernels)

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (50 * MS, 0, 50 * MS)
    assert (finding.evidence[0].name, finding.evidence[0].value) == ("layer_norm", 12.0)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("reduction", {"occupancy": 0.6}),
        ("reduction", {"occupancy": None}),
        ("reduction", {"occupancy": 0.12, "sm_efficiency": 0.1}),
        ("matmul", {"occupancy": 0.12}),
    ],
)
def test_kernels_with_enough_warps_or_few_on_purpose_are_not_reported(
    kind: str, fields: dict[str, float | None], build: Any
) -> None:
    kernels = build.kernels(("kernel", kind, 600), **fields)

    assert build.findings(low_occupancy, build.traced_step(100), build.device(1000, compute=1000), kernels) == []
