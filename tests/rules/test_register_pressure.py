"""register-pressure: spills, and registers that leave few warps to a kernel far from its peaks."""

from __future__ import annotations

from typing import Any

from perfkit.rules.kernels import register_pressure

SLOW = {"compute": 0.22, "memory": 0.55}


def test_more_than_128_registers_in_a_kernel_far_from_its_peaks_are_reported(build: Any) -> None:
    few = build.kernel_profiles({**SLOW, "registers": 128, "theoretical_occupancy": 0.5})
    fast = build.kernel_profiles({**SLOW, "registers": 168, "compute": 0.6})

    [finding] = build.findings(register_pressure, build.kernel_profiles({**SLOW, "registers": 168}))

    assert "168 registers per thread, which lets 12% of the warps fit" in finding.message
    assert finding.severity == "warning"
    assert build.findings(register_pressure, few) == []
    assert build.findings(register_pressure, fast) == []


def test_registers_that_only_limit_the_warps_are_information(build: Any) -> None:
    limited = {**SLOW, "registers": 96, "theoretical_occupancy": 0.31}

    [finding] = build.findings(register_pressure, build.kernel_profiles(limited))

    assert finding.severity == "info"
    both = build.kernel_profiles({**limited, "limiters": ("registers", "shared memory")})
    assert build.findings(register_pressure, both) == []


def test_spills_are_reported_near_the_peak_too_but_not_those_of_a_prologue(build: Any) -> None:
    [finding] = build.findings(register_pressure, build.kernel_profiles({"spill_share": 0.24, "spills": 9e6}))

    assert "stores some to memory and loads them again (24% of its local memory requests)" in finding.message
    assert finding.confidence == "high"

    # 512 blocks of 8 warps: 4096 warps.
    prologue = build.kernel_profiles({"spill_share": None, "spills": 4096 * 8.0})
    assert build.findings(register_pressure, prologue) == []
    [finding] = build.findings(register_pressure, build.kernel_profiles({"spill_share": None, "spills": 4096 * 400.0}))
    assert finding.confidence == "medium"
