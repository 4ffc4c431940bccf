"""Rates, percentiles, slow steps and MFU; every number is done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.device.peaks import PEAKS, peaks_of
from perfkit.measures.steps.throughput import measure_throughput
from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.measures.steps.utilization import measure_utilization
from perfkit.run.records import Phases, Step, StepFlops

MS = 1_000_000


def row(step: int, ms: float, phases: Phases | None = None, **more: Any) -> Step:
    wall_ns = round(ms * MS)
    return Step(step=step, start_ns=step * 10**9, wall_ns=wall_ns, phases_ns=phases or Phases(other=wall_ns), **more)


def test_rates_are_totals_over_totals_without_validation() -> None:
    rows = [row(step, 10, samples=32, tokens=1000) for step in range(2, 11)]
    rows.append(row(11, 60, Phases(other=10 * MS, validation=50 * MS), samples=32, tokens=1000))
    found = measure_throughput(rows)

    assert found is not None
    assert found.steps_per_s == pytest.approx(100)
    assert found.samples_per_s == pytest.approx(3200)
    assert found.tokens_per_s == pytest.approx(100_000)


def test_a_rate_that_not_every_step_told_is_not_known() -> None:
    found = measure_throughput([row(2, 10, samples=8), row(3, 10)])

    assert found is not None
    assert found.samples_per_s is None
    assert found.tokens_per_s is None


def test_percentiles_of_a_hundred_steps() -> None:
    found = measure_throughput([row(step + 2, step + 1) for step in range(100)])

    assert found is not None
    assert (found.p50_ns, found.p90_ns, found.p99_ns) == (50 * MS, 90 * MS, 99 * MS)


def test_a_percentile_of_too_few_steps_is_not_known() -> None:
    few, some = measure_throughput([row(2, 1)]), measure_throughput([row(step + 2, 1) for step in range(10)])

    assert few is not None
    assert (few.p50_ns, few.p90_ns) == (MS, None)
    assert some is not None
    assert (some.p90_ns, some.p99_ns) == (MS, None)


def test_a_merged_row_counts_as_the_steps_it_stands_for() -> None:
    found = measure_throughput([row(0, 90, steps=90), row(90, 5), *(row(91 + step, 9) for step in range(9))])

    assert found is not None
    assert (found.steps, found.p50_ns, found.p90_ns, found.p99_ns) == (100, MS, MS, 9 * MS)
    assert found.source == "steps.jsonl, 100 steps in 11 rows"
    assert {slow.step for slow in found.slowest} <= set(range(90, 100))


def test_steps_inside_windows_of_the_dry_run_and_of_the_warm_up_are_left_out() -> None:
    rows = [row(0, 900), row(1, 900), row(2, 500, kind="window"), row(3, 500, kind="dry")]
    found = measure_throughput([*rows, *(row(step, 10) for step in range(4, 20))])

    assert found is not None
    assert found.slowest[0].wall_ns == 10 * MS
    assert found.excluded == {"in a window": 1, "dry run": 1, "warm-up": 2}


def test_a_slow_step_names_the_phase_that_made_it_slow() -> None:
    usual = Phases(data=2 * MS, forward=8 * MS)
    rows = [row(step, 10, usual) for step in range(2, 12)]
    rows[4] = row(6, 50, Phases(data=3 * MS, forward=8 * MS, checkpoint=39 * MS), gc_ns=5)
    found = measure_throughput(rows)

    assert found is not None
    slowest = found.slowest[0]
    assert (slowest.step, slowest.phase, slowest.beyond_ns, slowest.gc_ns) == (6, "checkpoint", 39 * MS, 5)
    assert found.slowest[1].phase is None
    assert len(found.slowest) == 5


def test_without_a_timed_step_there_is_no_throughput() -> None:
    assert measure_throughput([row(0, 10, kind="window")]) is None


def test_memory_of_a_run_is_its_highest_peak_and_the_sum_of_its_allocator_calls() -> None:
    rows = [row(0, 1, memory_peak_bytes=5), row(1, 1), row(2, 1, memory_peak_bytes=9, alloc_retries=0, device_allocs=2)]
    found = measure_typical_step([*rows, row(3, 1, alloc_retries=1, device_allocs=2)])

    assert found is not None
    assert (found.memory_peak_bytes, found.alloc_retries, found.device_allocs) == (9, 1, 4)


# -- MFU


def flops(device: str | None = "NVIDIA A100-SXM4-40GB", recomputed: int = 0, **by_precision: int) -> StepFlops:
    return StepFlops(step=9, by_precision=by_precision, recomputed=recomputed, device=device)


def test_mfu_is_the_share_of_the_dense_peak() -> None:
    # 312e12 operations a second for 0.1 s are 31.2e12; half of them were done.
    found = measure_utilization(flops(bfloat16=15_600_000_000_000), 100 * MS)

    assert found is not None
    assert found.mfu == pytest.approx(0.5)
    assert (found.precision, found.peak_flops_per_s) == ("bfloat16", 312e12)
    assert found.source == "operations counted in step 9; dense peak of NVIDIA A100-SXM4-40GB in bfloat16, 312 TFLOP/s"


def test_each_precision_is_held_against_its_own_peak() -> None:
    # At their peaks 31.2e12 bfloat16 operations take 0.1 s and 1.95e12 float32 operations as long again.
    found = measure_utilization(flops(bfloat16=31_200_000_000_000, float32=1_950_000_000_000), 400 * MS)

    assert found is not None
    assert found.mfu == pytest.approx(0.5)


def test_what_was_computed_again_does_not_raise_the_mfu() -> None:
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
        assert peaks.tflops.get("float8", 0) <= 2.1 * peaks.tflops["float16"]
        assert peaks.tflops.get("tf32", 0) <= 0.51 * peaks.tflops["float16"]
