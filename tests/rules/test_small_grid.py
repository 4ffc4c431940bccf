"""small-grid: long kernels with fewer blocks than multiprocessors are reported; short ones and copies are not."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.device import small_grid

MS = 1_000_000


def test_the_time_with_a_small_grid_is_reported(build: Any) -> None:
    kernels = build.kernels(("softmax", "reduction", 600), ("mm", "matmul", 400), small_grid_share=0.5)

    [finding] = build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), kernels)

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (50 * MS, 0, 50 * MS)
    assert [evidence.name for evidence in finding.evidence] == ["softmax", "mm"]
    assert "(mean 250 µs)" in finding.message
    # A larger batch is half an advice without its learning rate.
    assert "k times the old one with SGD" in finding.advice
    assert "square root of k times with Adam" in finding.advice


def test_batch_norms_with_channels_first_are_told_of_channels_last(build: Any) -> None:
    norms = build.kernels(
        ("void at::native::batch_norm_backward_kernel<c10::BFloat16>", "reduction", 900), small_grid_share=1.0
    )
    others = build.kernels(
        ("void at::native::batch_norm_backward_reduce_channels_last_kernel<4>", "reduction", 900), small_grid_share=1.0
    )

    [first] = build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), norms)
    [last] = build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), others)

    assert "torch.channels_last" in first.advice
    assert "a larger batch" in last.advice


@pytest.mark.parametrize(
    ("kind", "ms", "share"), [("reduction", 600, 0.1), ("reduction", 9, 1.0), ("copy", 600, 1.0), ("matmul", 600, None)]
)
def test_full_grids_short_kernels_and_copies_are_not_reported(
    kind: str, ms: float, share: float | None, build: Any
) -> None:
    kernels = build.kernels(("kernel", kind, ms), small_grid_share=share)

    assert build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), kernels) == []
