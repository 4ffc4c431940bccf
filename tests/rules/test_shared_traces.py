"""What the rules on kernels, ops, copies and launches report for real traces.

The findings for v100, nsys-healthy and the optimizers of resnet50 were checked by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.diagnosis import diagnose

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
RULES = {
    "attention-unfused",
    "blocking-copy",
    "conv-bias-before-norm",
    "copies-dominate",
    "cuda-graph-candidate",
    "dtype-conversion",
    "exposed-communication",
    "float64-in-step",
    "fp32-without-tf32",
    "indexing-backward",
    "launch-bound",
    "layout-conversion",
    "low-occupancy",
    "low-precision-unused",
    "pageable-copy",
    "small-grid",
    "unfriendly-shapes",
    "unfused-elementwise",
    "unfused-optimizer",
}

EXPECTED = {
    # A host that is late. Exposed communication is 6% of the step: 4% transfer, and 2% waiting for the other rank.
    "a100-2ranks-nccl.json.gz": {"launch-bound"},
    "a100-8ranks-training.json.gz": {"launch-bound", "exposed-communication"},
    # One forward pass from a cold start: 66% of it is allocation.
    "a100-alexnet-cuda-sync-events.json.gz": set(),
    "cpu-only-rank34.json.gz": set(),
    # Kernels of 8 µs with host work between them, in one step: whether steps are equal is unknown.
    "h100-inference-image.json.gz": {"launch-bound"},
    # 14 kernels, and one gap of 7 ms after the first launch.
    "mi250-rocm.json.gz": set(),
    "nsys-healthy.sqlite": set(),
    "nsys-mock.sqlite": set(),
    # SGD of torch 1.9, before foreach: 484 ops for 161 parameters, in which the device waits.
    "resnet50-workers-0.pt.trace.json.gz": {"launch-bound", "unfused-optimizer"},
    "resnet50-workers-4.pt.trace.json.gz": {"launch-bound", "unfused-optimizer"},
    # A compiled region takes two tensors of doubles among hundreds: no float64-in-step.
    "v100-2ranks-training.json.gz": {"exposed-communication"},
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_for_a_real_trace_only_what_is_true_is_reported(name: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("shared traces are not next to the checkout")
    diagnosis = diagnose(SHARED / name)

    assert not any("failed" in one for one in diagnosis.missing)
    reported = {finding.rule for finding in diagnosis.findings if finding.severity != "info"}
    assert reported & RULES == EXPECTED[name]
