"""What the rules on kernels profiled by Nsight Compute have in common, and the verdict over such a report."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from perfkit.diagnosis import diagnose
from perfkit.measures.results.kernel_profiles import ToolAdvice
from perfkit.rules.kernels import (
    bank_conflicts,
    divergent_warps,
    dram_bound_kernels,
    dram_underused,
    latency_bound_kernel,
    ncu_advice,
    register_pressure,
    uncoalesced_access,
)

#: Each rule on single kernels, with what a kernel has that shows its problem.
SHOWN_BY: dict[Any, dict[str, Any]] = {
    latency_bound_kernel: {"compute": 0.1, "memory": 0.2, "dram": 0.2},
    dram_underused: {"compute": 0.2, "memory": 0.5, "dram": 0.2},
    register_pressure: {"compute": 0.2, "memory": 0.5, "dram": 0.2},
    divergent_warps: {"threads_per_warp": 12.0},
    uncoalesced_access: {"compute": 0.2, "sector_use": 0.25},
    bank_conflicts: {"conflict_share": 0.75},
    ncu_advice: {"advice": (ToolAdvice(rule="Wave", section="LaunchStats", text="One wave.", saving_share=0.5),)},
}
RULES = (*SHOWN_BY, dram_bound_kernels)
#: A kernel of which only this is known.
UNKNOWN = dict.fromkeys(
    ("compute", "memory", "dram", "l1", "l2", "registers", "occupancy", "theoretical_occupancy", "waves", "spills")
) | {"spill_share": None, "limiters": (), "grid": None, "block": None, "name": "gemm"}
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.ID)


@each_rule
def test_a_kernel_near_its_peak_is_healthy_whatever_its_registers(rule: Any, build: Any) -> None:
    assert build.findings(rule, build.kernel_profiles({})) == []


@each_rule
def test_without_a_profile_or_its_numbers_nothing_is_reported(rule: Any, build: Any) -> None:
    assert build.findings(rule) == []
    assert build.findings(rule, build.kernel_profiles(UNKNOWN | {"total_ns": None})) == []
    assert build.findings(rule, build.kernel_profiles(UNKNOWN | {"registers": 255, "compute": 0.1})) == []


@each_rule
def test_its_explanation_names_the_source_of_its_thresholds_and_whether_a_gpu_has_run_it(rule: Any) -> None:
    text = " ".join((inspect.getdoc(rule) or "").split())

    assert text.endswith(("Not run on a GPU yet.", "Seen in a report of Nsight Compute from an H200."))
    assert "Nsight Compute" in text


def test_kernels_below_5_percent_of_the_profiled_time_are_not_reported_but_all_grids_of_a_name_are(build: Any) -> None:
    slow = {"name": "add", "share": 0.03, "compute": 0.1, "memory": 0.1}
    others = [{**slow, "grid": (n, 1, 1)} for n in (1, 2)]

    one = build.kernel_profiles(others[0], {"name": "gemm", "share": 0.97})
    assert build.findings(latency_bound_kernel, one) == []
    [finding] = build.findings(latency_bound_kernel, build.kernel_profiles(*others, {"name": "gemm", "share": 0.94}))
    assert finding.message.startswith("add takes 6% of the profiled time")
    assert finding.evidence[0].value == 2


@pytest.mark.parametrize("rule", SHOWN_BY, ids=lambda rule: rule.ID)
def test_a_finding_has_no_cost_and_names_the_reason(rule: Any, build: Any) -> None:
    [finding] = build.findings(rule, build.kernel_profiles(SHOWN_BY[rule]))

    assert (finding.cost_ns, finding.saving_high_ns) == (None, None)
    assert [item.source for item in finding.evidence if item.value is None] == [
        "ncu runs each kernel alone, usually with clocks held and caches emptied, so its report has no step"
    ]
    assert any(item.name == "time of a launch" and item.value == 1000.0 for item in finding.evidence)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, 0>", "torch.channels_last"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_tf32f32", "A library brings this kernel"),
        ("void at::native::vectorized_elementwise_kernel<4>", "A library brings this kernel"),
        ("my_triton_kernel_0d1d2d", "select instead of branching"),
    ],
)
def test_advice_on_a_kernels_code_is_for_those_who_have_it(name: str, words: str, build: Any) -> None:
    [finding] = build.findings(divergent_warps, build.kernel_profiles({"name": name, "threads_per_warp": 12.0}))

    assert words in finding.advice


def test_a_kernel_without_throughputs_has_no_evidence_of_them(build: Any) -> None:
    [finding] = build.findings(register_pressure, build.kernel_profiles(UNKNOWN | {"spills": 9e6, "spill_share": 0.5}))

    assert [item.name for item in finding.evidence] == [
        "launches",
        "time of a launch",
        "spill requests",
        "cost per step",
    ]


def test_the_verdict_names_the_longest_kernel_and_whether_anything_is_wrong_or_unknown(build: Any) -> None:
    healthy = diagnose(
        build.measurements(build.kernel_profiles({"name": "gemm", "share": 0.9}, {"name": "add", "share": 0.1}))
    )
    unknown = diagnose(build.measurements(build.kernel_profiles(UNKNOWN | {"total_ns": 5_000})))

    assert healthy.verdict == (
        "2 kernels in 2 launches of 2.0 ms in total, most of the time in gemm (90%): compute 82%, memory 55%, DRAM 30% "
        "of peak. No kernel with 5% or more of the time stalls on latency, "
        "spills registers, or underuses the DRAM."
    )
    assert healthy.findings == ()
    assert unknown.verdict.endswith("The report does not hold their throughput, so their efficiency is unknown.")
