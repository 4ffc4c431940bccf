"""Model FLOPs utilization; every number is computed by hand."""

from __future__ import annotations

import pytest

from perfkit.limits.device_peaks import PEAKS, peaks_of
from perfkit.measures.steps.utilization import measure_utilization
from perfkit.run.records import StepFlops

MS = 1_000_000


def flops(device: str | None = "NVIDIA A100-SXM4-40GB", recomputed: int = 0, **by_precision: int) -> StepFlops:
    return StepFlops(step=9, by_precision=by_precision, recomputed=recomputed, device=device)


def test_mfu_is_the_share_of_the_dense_peak() -> None:
    # 312e12 operations a second for 0.1 s are 31.2e12; half of them were done.
    found = measure_utilization(flops(bfloat16=15_600_000_000_000), 100 * MS)

    assert found is not None
    assert found.mfu == pytest.approx(0.5)
    assert (found.precision, found.peak_flops_per_s) == ("bfloat16", 312e12)
    assert found.source == "operations counted in step 9; dense peak of NVIDIA A100-SXM4-40GB in bfloat16, 312 TFLOP/s"


def test_each_precision_is_compared_with_its_own_peak() -> None:
    # At their peaks 31.2e12 bfloat16 operations take 0.1 s and 1.95e12 float32 operations as long again.
    found = measure_utilization(flops(bfloat16=31_200_000_000_000, float32=1_950_000_000_000), 400 * MS)

    assert found is not None
    assert found.mfu == pytest.approx(0.5)


def test_recomputed_operations_do_not_raise_the_mfu() -> None:
    found = measure_utilization(flops(bfloat16=20_800_000_000_000, recomputed=5_200_000_000_000), 100 * MS)

    assert found is not None
    assert found.mfu == pytest.approx(0.5)
    assert found.flops == 15_600_000_000_000


@pytest.mark.parametrize(
    "unknown",
    [
        flops(device=None, float32=10**9),
        flops(device="NVIDIA A100-SXM4-40GB MIG 1g.5gb", bfloat16=10**9),
        flops(device="NVIDIA GeForce RTX 3080", bfloat16=10**9),
        flops(device="Tesla V100-SXM2-16GB", bfloat16=10**9),
        flops(),
        StepFlops(step=0, problem="compiled"),
        None,
    ],
    ids=["cpu", "slice", "no peak", "no units for it", "nothing counted", "not countable", "not counted"],
)
def test_without_a_known_count_and_peak_there_is_no_mfu(unknown: StepFlops | None) -> None:
    assert measure_utilization(unknown, 100 * MS) is None


def test_the_tensor_peaks_are_dense_ones() -> None:
    # Sparse figures are twice these, and have doubled MFU before.
    tflops = {
        name: known.tflops
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L4", "NVIDIA L40S")
        if (known := peaks_of(name)) is not None
    }
    assert {name: peaks["bfloat16"] for name, peaks in tflops.items()} == {
        "NVIDIA H100 80GB HBM3": 989.5,
        "NVIDIA H200": 989.5,
        "NVIDIA L4": 121,
        "NVIDIA L40S": 362.05,
    }
    for peaks in PEAKS.values():
        assert peaks.tflops.get("float8", 0) <= 2.1 * peaks.tflops.get("float16", 0)
        assert peaks.tflops.get("tf32", 0) <= 0.51 * peaks.tflops.get("float16", 0)


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA GeForce RTX 4090 Laptop",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_a_version_with_another_clock_or_fewer_units_is_not_taken_for_its_namesake(device: str) -> None:
    assert peaks_of(device) is None
