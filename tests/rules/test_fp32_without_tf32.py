"""fp32-without-tf32: float32 products on a device with TF32; the recorded setting decides which count."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit.rules.ops import fp32_without_tf32

MS = 1_000_000


def device(build: Any, name: str = "NVIDIA A100-SXM4-80GB") -> Any:
    return msgspec.structs.replace(build.device(1000, compute=1000), name=name)


def test_products_in_float32_cost_the_ratio_of_the_peaks(build: Any) -> None:
    kernels = build.kernels(("sgemm", "matmul", 800), ("add", "elementwise", 200))
    rank = msgspec.structs.replace(build.rank(), settings={"torch.matmul_precision": "highest"})

    [finding] = build.findings(fp32_without_tf32, build.traced_step(100), device(build), kernels, rank)

    # 80 ms at 19.5 instead of 156 TFLOP/s.
    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (70 * MS, 35 * MS, 70 * MS)
    assert finding.confidence == "high"


@pytest.mark.parametrize(
    ("name", "kind", "setting", "tensor_cores"),
    [
        ("Tesla V100-SXM2-16GB", "matmul", "highest", False),
        ("unknown", "matmul", "highest", False),
        ("NVIDIA A100-SXM4-80GB", "matmul", "high", False),
        ("NVIDIA A100-SXM4-80GB", "matmul", "highest", True),
        ("NVIDIA A100-SXM4-80GB", "elementwise", "highest", False),
    ],
    ids=["no TF32", "unknown device", "TF32 is on", "tensor cores", "no product"],
)
def test_where_tf32_is_in_use_or_does_not_exist_nothing_is_reported(
    name: str, kind: str, setting: str, tensor_cores: bool, build: Any
) -> None:
    kernels = build.kernels(("kernel", kind, 800), tensor_cores=tensor_cores)
    rank = msgspec.structs.replace(build.rank(), settings={"torch.matmul_precision": setting})

    assert build.findings(fp32_without_tf32, build.traced_step(100), device(build, name), kernels, rank) == []


def test_convolutions_are_reported_whatever_the_setting_of_products(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), settings={"torch.matmul_precision": "high"})

    [finding] = build.findings(
        fp32_without_tf32, build.traced_step(100), device(build), build.kernels(("conv", "convolution", 800)), rank
    )

    assert finding.confidence == "medium"
