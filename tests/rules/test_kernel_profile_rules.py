"""Rules about kernels that Nsight Compute profiled: the smallest profile that shows each problem, and healthy twins."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.diagnosis import diagnose
from perfkit.findings import Finding
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, Stall
from perfkit.measures.results.measured import Measured
from perfkit.rules import explain
from perfkit.rules.kernels import dram_underused, latency_bound_kernel, register_pressure

#: As a good matrix product is: many registers and few warps on purpose, near the peak of compute.
HEALTHY: dict[str, Any] = {
    "total_ns": 1_000_000,
    "compute": 0.82,
    "memory": 0.55,
    "dram": 0.30,
    "l1": 0.55,
    "l2": 0.40,
    "registers": 240,
    "occupancy": 0.12,
    "theoretical_occupancy": 0.125,
    "limiters": ("registers",),
    "waves": 8.0,
    "spills": 32_768.0,
    "spill_share": 0.01,
    "grid": (512, 1, 1),
    "block": (256, 1, 1),
}


def kernel(name: str = "kernel", share: float = 1.0, **changed: Any) -> KernelProfile:
    return KernelProfile(name=name, launches=1, share=share, **{**HEALTHY, **changed})


def measured(*rows: KernelProfile) -> Measured:
    profiles = KernelProfiles(launches=len(rows), rows=rows, total_ns=sum(row.total_ns or 0 for row in rows))
    return Measured(source="report.csv", kernel_profiles=profiles)


def found(rule: Any, *rows: KernelProfile) -> list[Finding]:
    return list(rule.check(measured(*rows)))


RULES = (latency_bound_kernel, dram_underused, register_pressure)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.ID)
def test_a_kernel_near_its_peak_is_healthy_whatever_its_registers(rule: Any) -> None:
    assert found(rule, kernel()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.ID)
def test_without_a_profile_or_its_numbers_nothing_is_told(rule: Any) -> None:
    assert list(rule.check(Measured(source="trace.json"))) == []
    assert found(rule, KernelProfile(name="kernel", launches=3, share=1.0)) == []
    assert found(rule, KernelProfile(name="kernel", launches=3, total_ns=5, registers=255, compute=0.1)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.ID)
def test_explain_says_where_the_thresholds_come_from_and_that_no_gpu_has_run_it(rule: Any) -> None:
    assert explain(rule.ID).endswith(("Not run on a GPU yet.", "Not run on a\nGPU yet."))
    assert "Nsight Compute" in explain(rule.ID)


def test_a_kernel_below_30_percent_of_both_is_latency_bound_and_its_stall_is_named() -> None:
    (finding,) = found(
        latency_bound_kernel, kernel(compute=0.08, memory=0.29, stalls=(Stall("barrier", 0.48), Stall("wait", 0.1)))
    )

    assert "reaches 8% of the compute and 29% of the memory throughput" in finding.message
    assert "Most of the waiting is barrier (48% of a warp's time)." in finding.message
    assert finding.advice.startswith("Its warps wait for each other")
    assert (finding.confidence, finding.function) == ("high", "kernel")


def test_at_30_percent_of_one_of_them_a_kernel_is_not_latency_bound() -> None:
    assert found(latency_bound_kernel, kernel(compute=0.30, memory=0.05)) == []


def test_a_grid_that_does_not_fill_the_device_is_the_cause_and_not_its_stall() -> None:
    (finding,) = found(
        latency_bound_kernel, kernel(compute=0.02, memory=0.03, waves=0.4, stalls=(Stall("no_instruction", None),))
    )

    assert "the grid fills the device only 0.40 times" in finding.message
    assert "larger batches" in finding.advice


def test_memory_bound_below_half_of_dram_names_the_cache_that_is_busy() -> None:
    low = {"compute": 0.2, "memory": 0.9, "dram": 0.2}

    (finding,) = found(dram_underused, kernel(**low, l1=0.9, l2=0.4))
    assert "gets 20% of what the memory can deliver while L1 works at 90%" in finding.message
    assert finding.advice.startswith("L1 is the busy part")
    (finding,) = found(dram_underused, kernel(**{**low, "dram": 0.45, "memory": 0.45}, l1=0.2, l2=0.3))
    assert finding.advice.startswith("Have more bytes in flight")


@pytest.mark.parametrize(
    "twin",
    [
        {"compute": 0.2, "memory": 0.85, "dram": 0.85},  # streams as fast as the memory
        {"compute": 0.6, "memory": 0.5, "dram": 0.2},  # computes
        {"compute": 0.1, "memory": 0.2, "dram": 0.2},  # waits: another finding
        {"compute": 0.2, "memory": 0.9, "dram": None},  # not measured
    ],
)
def test_memory_that_is_used_or_is_not_the_limit_is_no_opportunity(twin: dict[str, float]) -> None:
    assert found(dram_underused, kernel(**twin)) == []


def test_more_than_128_registers_in_a_kernel_far_from_its_peaks_press() -> None:
    slow = {"compute": 0.22, "memory": 0.55}

    (finding,) = found(register_pressure, kernel(**slow, registers=168))
    assert "168 registers per thread, which lets 12% of the warps fit" in finding.message
    assert finding.severity == "warning"
    assert found(register_pressure, kernel(**slow, registers=128, theoretical_occupancy=0.5)) == []
    assert found(register_pressure, kernel(**{**slow, "compute": 0.6}, registers=168)) == []


def test_registers_that_only_limit_the_warps_are_told_for_information() -> None:
    slow = {"compute": 0.22, "memory": 0.55, "registers": 96, "theoretical_occupancy": 0.31}

    (finding,) = found(register_pressure, kernel(**slow))
    assert finding.severity == "info"
    assert found(register_pressure, kernel(**{**slow, "limiters": ("registers", "shared memory")})) == []


def test_spills_are_told_near_the_peak_too_but_not_the_few_of_a_prologue() -> None:
    (finding,) = found(register_pressure, kernel(spill_share=0.24, spills=9e6))
    assert "stores some to memory and loads them again (24% of its local memory requests)" in finding.message
    assert finding.confidence == "high"
    # 512 blocks of 8 warps: 4096 warps.
    assert found(register_pressure, kernel(spill_share=None, spills=4096 * 8.0)) == []
    assert [one.confidence for one in found(register_pressure, kernel(spill_share=None, spills=4096 * 400.0))] == [
        "medium"
    ]


def test_kernels_below_5_percent_of_the_profiled_time_are_not_told_but_all_grids_of_a_name_together_are() -> None:
    slow = {"compute": 0.1, "memory": 0.1}
    small = [kernel("add", 0.03, grid=(n, 1, 1), **slow) for n in (1, 2)]

    assert found(latency_bound_kernel, small[0], kernel("gemm", 0.97)) == []
    (finding,) = found(latency_bound_kernel, *small, kernel("gemm", 0.94))
    assert finding.message.startswith("add takes 6% of the profiled time")
    assert finding.evidence[0].value == 2


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.ID)
def test_findings_have_no_price_and_say_why(rule: Any) -> None:
    row = kernel(compute=0.1, memory=0.2) if rule is latency_bound_kernel else kernel(compute=0.2, memory=0.5, dram=0.2)

    (finding,) = found(rule, row)

    assert (finding.cost_ns, finding.saving_high_ns) == (None, None)
    assert [item.source for item in finding.evidence if item.value is None] == [
        "ncu runs each kernel alone, with clocks held and caches emptied, so its report holds no step"
    ]
    assert any(item.name == "time of a launch" and item.value == 1000.0 for item in finding.evidence)


def test_the_verdict_names_the_longest_kernel_and_says_when_nothing_is_wrong_or_cannot_be_told() -> None:
    healthy = diagnose(measured(kernel("gemm", 0.9), kernel("add", 0.1)))
    unknown = diagnose(measured(KernelProfile(name="gemm", launches=1, total_ns=5_000, share=1.0)))

    assert healthy.verdict == (
        "2 kernels in 2 launches, 2.0 ms together, most of the time in gemm (90%): compute 82%, memory 55%, DRAM 30% "
        "of peak. No kernel with 5% or more of it waits, spills, or leaves the memory unused."
    )
    assert healthy.findings == ()
    assert unknown.verdict.endswith("How good they are cannot be told: the report does not hold their throughput.")
