"""small-grid: long kernels with fewer blocks than multiprocessors are reported; short ones and copies are not."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.rules.device import small_grid

MS = 1_000_000


def test_the_time_with_a_small_grid_is_reported(build: Any) -> None:
    kernels = build.kernels(("softmax", "reduction", 600), ("mm", "matmul", 400), sm_efficiency=0.5)

    [finding] = build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), kernels)

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (50 * MS, 0, 50 * MS)
    assert [evidence.name for evidence in finding.evidence] == ["softmax", "mm"]
    assert "(mean 500 µs) take 100% of the step and use 50% of its multiprocessors" in finding.message
    # A larger batch is half an advice without its learning rate.
    assert "k times the old one with SGD" in finding.advice
    assert "square root of k times with Adam" in finding.advice


def test_a_product_with_a_block_for_almost_each_multiprocessor_loses_little(build: Any) -> None:
    kernels = build.kernels(("sm90_xmma_gemm_bf16", "matmul", 900), sm_efficiency=120 / 132)

    assert build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), kernels) == []


def test_batch_norms_with_channels_first_are_another_rules(build: Any) -> None:
    kernels = build.kernels(
        ("void at::native::batch_norm_backward_kernel<c10::BFloat16>", "reduction", 900), sm_efficiency=0.2
    )

    assert build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), kernels) == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(x)", "torch.channels_last"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(x)", "torch.channels_last"),
        ("void at::native::reduce_kernel<512, 1, float>(x)", "a larger batch"),
    ],
)
def test_cudnns_batch_norm_of_few_channels_is_told_of_channels_last(name: str, advice: str, build: Any) -> None:
    kernels = build.kernels((name, "reduction", 900), sm_efficiency=0.5)

    [finding] = build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), kernels)

    assert advice in finding.advice


@pytest.mark.parametrize(
    ("kind", "ms", "share"), [("reduction", 600, 0.9), ("reduction", 9, 0.0), ("copy", 600, 0.0), ("matmul", 600, None)]
)
def test_full_grids_short_kernels_and_copies_are_not_reported(
    kind: str, ms: float, share: float | None, build: Any
) -> None:
    kernels = build.kernels(("kernel", kind, ms), sm_efficiency=share)

    assert build.findings(small_grid, build.traced_step(100), build.device(1000, compute=1000), kernels) == []
