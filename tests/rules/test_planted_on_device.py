"""Device rules on generated traces: the planted cause is reported first, and not for its corrected twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trace_timeline import ADD, BF16, GEMM_BF16, GEMM_FP32, GEMM_TF32, Timeline

from perfkit.diagnosis import Diagnosis

US = 1_000


@pytest.fixture
def timeline(tmp_path: Path) -> Callable[..., Timeline]:
    return lambda **how: Timeline(tmp_path, **how)


def problems(diagnosis: Diagnosis) -> list[str]:
    """The rules with a finding that is not information."""
    return [finding.rule for finding in diagnosis.findings if finding.severity != "info"]


def first(diagnosis: Diagnosis) -> str:
    """The rule whose finding no other one explains and that costs most."""
    assert not any("failed" in one for one in diagnosis.missing), diagnosis.missing
    return next(one.rule for one in diagnosis.findings if one.follows is None)


def compute(line: Timeline, *, kernel: str = GEMM_BF16, kernels: int = 20, lasts: float = 100, **how: Any) -> None:
    for _ in range(kernels):
        line.run(kernel, lasts, **how)


def test_pageable_copies(timeline: Any) -> None:
    def step(memory: str, blocking: bool) -> Callable[[Timeline], None]:
        def one(line: Timeline) -> None:
            how = {"op": "aten::to", "api": "cudaMemcpyAsync", "bytes": 8_000_000, "blocking": blocking}
            line.run(f"Memcpy HtoD ({memory} -> Device)", 2_000 if memory == "Pageable" else 50, **how)
            compute(line)

        return one

    assert first(timeline().diagnosed(step("Pageable", True))) == "pageable-copy"
    assert "pageable-copy" not in problems(timeline().diagnosed(step("Pinned", False)))


def test_copies_that_block_the_host(timeline: Any) -> None:
    def step(blocking: bool) -> Callable[[Timeline], None]:
        def one(line: Timeline) -> None:
            for _ in range(10):
                how = {"op": "aten::to", "api": "cudaMemcpy", "bytes": 1_200_000, "blocking": blocking}
                if not blocking:
                    how["api"] = "cudaMemcpyAsync"
                line.run("Memcpy HtoD (Pinned -> Device)", 50 if blocking else 5, **how)
                compute(line, kernels=2)

        return one

    assert "blocking-copy" in problems(timeline().diagnosed(step(True)))
    assert "blocking-copy" not in problems(timeline().diagnosed(step(False)))


def test_float32_products_without_tf32(timeline: Any) -> None:
    slow = timeline().diagnosed(lambda line: compute(line, kernel=GEMM_FP32))
    fast = timeline().diagnosed(lambda line: compute(line, kernel=GEMM_TF32))

    assert first(slow) == "fp32-without-tf32"
    assert "fp32-without-tf32" not in problems(fast)
    # A V100 has no TF32.
    assert "fp32-without-tf32" not in problems(
        timeline(device="Tesla V100-SXM2-16GB").diagnosed(lambda line: compute(line, kernel=GEMM_FP32))
    )


def test_no_half_precision(timeline: Any) -> None:
    slow = timeline().diagnosed(lambda line: compute(line, kernel=GEMM_TF32))
    fast = timeline().diagnosed(lambda line: compute(line, kernel=GEMM_BF16))

    assert first(slow) == "low-precision-unused"
    assert "low-precision-unused" not in problems(fast)


def test_shapes_that_are_not_aligned_for_tensor_cores(timeline: Any) -> None:
    def step(vocabulary: int) -> Callable[[Timeline], None]:
        given = {"Input Dims": [[4096, 1024], [1024, vocabulary]], "Input type": [BF16, BF16]}
        return lambda line: compute(line, given=given)

    odd = timeline().diagnosed(step(50_257))

    assert first(odd) == "unfriendly-shapes"
    assert "1024x50257" in odd.findings[0].message
    assert "unfriendly-shapes" not in problems(timeline().diagnosed(step(50_304)))


def test_a_bias_before_a_batch_norm(timeline: Any) -> None:
    def step(bias: bool) -> Callable[[Timeline], None]:
        types = [BF16] * (3 if bias else 2)
        given = {"Input Dims": [[64, 64, 56, 56], [64, 64, 3, 3], [64]][: len(types)], "Input type": types}

        def one(line: Timeline) -> None:
            for _ in range(5):
                begin = line.now
                line.run("sm80_xmma_fprop_implicit_gemm_bf16", 100, op="aten::convolution", host=4)
                if bias:
                    line.run(ADD, 40, op="aten::add_", host=4)
                line.add("cpu_op", "aten::conv2d", begin - 0.5, line.now + 0.5, **given)
                line.now += 1
                line.run("cudnn_bn_fwd_tr_1C11_bf16", 30, op="aten::batch_norm")
                line.now += 1

        return one

    assert first(timeline().diagnosed(step(True))) == "conv-bias-before-norm"
    assert "conv-bias-before-norm" not in problems(timeline().diagnosed(step(False)))


def test_rows_of_elementwise_kernels(timeline: Any) -> None:
    def step(ops: int) -> Callable[[Timeline], None]:
        given = {"Input Dims": [[4096, 4096], []], "Input type": ["float", "Scalar"]}

        def one(line: Timeline) -> None:
            compute(line, kernels=4)
            for i in range(ops):
                line.run(ADD, 100, op=("aten::mul", "aten::add", "aten::tanh")[i % 3], given=given)

        return one

    row = timeline().diagnosed(step(8))

    assert first(row) == "unfused-elementwise"
    # 8 ops of 100 µs read and write 64 MiB each; fused, 2 of the 16 passes remain.
    assert row.findings[0].saving_high_ns == pytest.approx(800 * US * 14 / 16, rel=0.01)
    assert "unfused-elementwise" not in problems(timeline().diagnosed(step(1)))


def test_kernels_that_convert_layouts(timeline: Any) -> None:
    def step(converts: bool) -> Callable[[Timeline], None]:
        def one(line: Timeline) -> None:
            for _ in range(10):
                if converts:
                    line.run("void cudnn::ops::nchwToNhwcKernel<__half, __half, float>", 60)
                line.run("sm80_xmma_fprop_implicit_gemm_bf16", 100, op="aten::cudnn_convolution")

        return one

    assert first(timeline().diagnosed(step(True))) == "layout-conversion"
    assert "layout-conversion" not in problems(timeline().diagnosed(step(False)))


def test_grids_smaller_than_the_device(timeline: Any) -> None:
    small = {"grid": [16, 1, 1], "blocks per SM": 0.15}

    assert first(timeline().diagnosed(lambda line: compute(line, **small))) == "small-grid"
    assert "small-grid" not in problems(timeline().diagnosed(compute))


def test_few_warps_per_multiprocessor(timeline: Any) -> None:
    def step(percent: float) -> Callable[[Timeline], None]:
        name = "triton_red_fused_native_layer_norm_3"
        return lambda line: compute(line, kernel=name, **{"est. achieved occupancy %": percent})

    assert first(timeline().diagnosed(step(12))) == "low-occupancy"
    assert "low-occupancy" not in problems(timeline().diagnosed(step(60)))


def test_a_graph_for_equal_steps_that_wait_for_launches(timeline: Any) -> None:
    def step(host: float, extra: bool = False) -> Callable[[Timeline], None]:
        def one(line: Timeline) -> None:
            for i in range(60 if extra and line.now > 3_000 else 50):
                line.run(GEMM_BF16, 3, op=f"aten::layer_{i}", host=host)

        return one

    slow = timeline().diagnosed(step(20))

    assert first(slow) == "launch-bound"
    assert [one.follows for one in slow.findings if one.rule == "cuda-graph-candidate"] == ["launch-bound"]
    # Steps that differ cannot be one graph; a device that is busy needs none.
    assert "cuda-graph-candidate" not in problems(timeline().diagnosed(step(20, extra=True)))
    assert "cuda-graph-candidate" not in problems(timeline().diagnosed(compute))


def test_an_optimizer_of_single_kernels(timeline: Any) -> None:
    def step(kernels: int) -> Callable[[Timeline], None]:
        def one(line: Timeline) -> None:
            compute(line, kernels=10)
            line.now = max(line.now, *line.free.values())
            begin = line.now
            for _ in range(kernels):
                line.run(ADD, 2, op="aten::_fused_adam_" if kernels == 1 else "aten::addcmul_", host=8)
            line.add("user_annotation", "Optimizer.step#Adam.step", begin - 0.5, line.now + 0.5)
            line.now += 1

        return one

    assert first(timeline().diagnosed(step(400))) == "unfused-optimizer"
    assert "unfused-optimizer" not in problems(timeline().diagnosed(step(1)))


def test_float64_kernels(timeline: Any) -> None:
    assert first(timeline().diagnosed(lambda line: compute(line, kernel="ampere_dgemm_64x64_nn"))) == "float64-in-step"
    assert "float64-in-step" not in problems(timeline().diagnosed(compute))


def test_attention_written_out(timeline: Any) -> None:
    def step(written_out: bool) -> Callable[[Timeline], None]:
        scores = {"Input Dims": [[8, 16, 1024, 1024], [], []], "Input type": [BF16, "Scalar", "Scalar"]}
        operands = {"Input Dims": [[8, 16, 1024, 64], [8, 16, 64, 1024]], "Input type": [BF16, BF16]}

        def one(line: Timeline) -> None:
            if not written_out:
                line.run("flash_fwd_kernel", 150, op="aten::scaled_dot_product_attention")
                return
            line.run(GEMM_BF16, 100, op="aten::matmul", given=operands)
            line.run(ADD, 200, op="aten::div", given=scores)
            line.run("softmax_warp_forward", 200, op="aten::softmax", given=scores)
            line.run(GEMM_BF16, 100, op="aten::matmul", given=operands)

        return one

    assert first(timeline().diagnosed(step(True))) == "attention-unfused"
    assert "attention-unfused" not in problems(timeline().diagnosed(step(False)))


def test_kernels_at_the_memorys_limit_are_healthy(timeline: Any) -> None:
    # 64 MiB read and 64 MiB written at 2,039 GB/s take 66 µs.
    given = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"]}
    healthy = timeline().diagnosed(lambda line: compute(line, kernel=ADD, lasts=120, op="aten::add_", given=given))

    assert problems(healthy) == []
    assert healthy.findings[0].rule == "memory-bound"


def test_kernels_at_the_limit_of_arithmetic_are_healthy(timeline: Any) -> None:
    # 2 x 4096^3 FLOP at 312 TFLOP/s take 441 µs.
    given = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": [BF16, BF16]}
    healthy = timeline().diagnosed(lambda line: compute(line, lasts=600, given=given))

    assert problems(healthy) == []
    assert healthy.findings[0].rule == "compute-bound"
    assert "of the compute limit (NVIDIA A100 data sheet)" in healthy.findings[0].message
