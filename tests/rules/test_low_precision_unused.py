"""low-precision-unused: long products none of which runs in half precision, on a device that has it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit.rules.ops import low_precision_unused

MS = 1_000_000


def device(build: Any, name: str = "NVIDIA A100-SXM4-80GB") -> Any:
    return msgspec.structs.replace(build.device(1000, compute=1000), name=name)


def test_products_cost_the_ratio_of_the_peaks(build: Any) -> None:
    kernels = build.kernels(("a", "matmul", 400), ("b", "add", 600), precisions=("tf32", "float32"), tensor_cores=True)

    [finding] = build.findings(low_precision_unused, build.traced_step(100), device(build), kernels)

    # 40 ms at 156 instead of 312 TFLOP/s.
    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (20 * MS, 10 * MS, 20 * MS)
    assert finding.advice.startswith("torch.autocast(dtype=torch.bfloat16)")


def test_what_is_between_the_products_may_move_half_the_bytes(build: Any) -> None:
    kernels = build.kernels(
        ("a", "matmul", 400),
        ("relu", "elementwise", 200),
        ("adam", "optimizer", 400),
        precisions=("tf32", "float32", "float32"),
        tensor_cores=True,
    )

    [finding] = build.findings(low_precision_unused, build.traced_step(100), device(build), kernels)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (10 * MS, 30 * MS)


@pytest.mark.parametrize(
    ("name", "precisions", "ms", "tensor_cores"),
    [
        ("NVIDIA A100-SXM4-80GB", ("tf32", "bfloat16"), 400, True),
        ("NVIDIA A100-SXM4-80GB", ("tf32", "float32"), 100, True),
        ("NVIDIA A100-SXM4-80GB", ("tf32", "float32"), 400, None),
        ("unknown", ("tf32", "float32"), 400, True),
    ],
    ids=["half precision in use", "short products", "uncertain precision", "unknown device"],
)
def test_where_half_precision_would_not_help_nothing_is_reported(
    name: str, precisions: tuple[str, ...], ms: float, tensor_cores: bool | None, build: Any
) -> None:
    rows = ("a", "matmul", ms), ("b", "add", 1000 - ms)
    kernels = build.kernels(*rows, precisions=precisions, tensor_cores=tensor_cores)

    assert build.findings(low_precision_unused, build.traced_step(100), device(build, name), kernels) == []
