"""What a sweep has measured, on a terminal."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from perfkit.reports.sweep import print_sweep
from perfkit.run.records import MemoryLine, Sweep, SweepPoint

MS = 1_000_000
MB = 1_000_000


@pytest.fixture
def sweep() -> Sweep:
    def point(value: int, ms: int, peak_mb: int, note: str = "") -> SweepPoint:
        per_s = value / ms * 1000
        return SweepPoint(
            value=value, reruns=2, steps=80, step_ns=ms * MS, per_s=per_s, low=0.99 * per_s, high=1.01 * per_s,
            peak_bytes=peak_mb * MB, left_bytes=(4000 - peak_mb) * MB, note=note,
        )  # fmt: skip

    return Sweep(
        program="train.py --epochs 3",
        verdict="batch-size=128 is the fastest with 2,560 samples/s; 914 with the program's own 32.",
        own=32,
        points=(
            point(16, 30, 1160),
            point(32, 35, 1320),
            point(128, 50, 2280),
            point(256, 95, 3700, "leaves less than 10% of 4.0 GB"),
            SweepPoint(value=512, outcome="out-of-memory", note="torch.OutOfMemoryError: CUDA out of memory"),
        ),
        memory="device",
        total_bytes=4000 * MB,
        reserve=0.1,
        line=MemoryLine(fixed_bytes=1000 * MB, bytes_per_sample=10 * MB, deviation=0.031, points=4),
        recommended=128,
        notes=("The budget had no time to measure each value twice.",),
        seconds=83.4,
    )


def test_a_sweep_is_a_table_with_a_bar_of_throughput_and_what_limits_each_value(
    sweep: Sweep, written: Callable[..., str]
) -> None:
    lines = written(print_sweep, sweep, 80).splitlines()

    assert lines[0] == "train.py --epochs 3 · 83 s"
    assert lines[4:10] == [
        "batch-size                              step  samples/s  spread  memory    left",
        "16                         ██        30.0 ms        533    1.0%  1.2 GB  2.8 GB",
        "32          own            ███       35.0 ms        914    1.0%  1.3 GB  2.7 GB",
        "128         recommended    ████████  50.0 ms      2,560    1.0%  2.3 GB  1.7 GB",
        "256                        ████████  95.0 ms      2,695    1.0%  3.7 GB  300 MB",
        "512         out of memory",
    ]
    assert " ".join(lines[11:]) == (
        "batch-size=256: leaves less than 10% of 4.0 GB batch-size=512: torch.OutOfMemoryError: CUDA out of memory "
        "Device memory at its peak is 1.0 GB + 10 MB per sample; the measured peaks are within 3.1% of that. A "
        "recommended batch leaves 10% of 4.0 GB, for fragmentation and batches that are longer than these. "
        "Note: The budget had no time to measure each value twice."
    )


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(sweep: Sweep, written: Callable[..., str], width: int) -> None:
    assert max(map(len, written(print_sweep, sweep, width).splitlines())) <= width


def test_the_memory_of_workers_is_not_counted(sweep: Sweep, written: Callable[..., str]) -> None:
    workers = msgspec.structs.replace(sweep, swept="workers", line=None, total_bytes=None)

    assert "Memory is that of the training process, without its workers'." in written(print_sweep, workers)
    assert "workers=512: torch.OutOfMemoryError" in written(print_sweep, workers)


def test_too_few_points_are_no_line_and_memory_may_not_grow(sweep: Sweep, written: Callable[..., str]) -> None:
    few = written(print_sweep, msgspec.structs.replace(sweep, line=None), 200)
    flat = MemoryLine(fixed_bytes=MB, bytes_per_sample=-3, deviation=0.0, points=3)

    assert "Device memory: too few batch sizes were measured to fit a line." in few
    assert "Device memory does not grow with the batch." in written(
        print_sweep, msgspec.structs.replace(sweep, line=flat), 200
    )
