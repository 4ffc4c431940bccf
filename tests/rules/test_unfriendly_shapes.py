"""unfriendly-shapes: half-precision products with unaligned dimensions; aligned ones and vectors are not reported."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.results.patterns import MatmulShape
from perfkit.rules.ops import unfriendly_shapes

MS = 1_000_000


def product(n: int, *, k: int = 1024, ms: float = 40, dtype: str = "c10::BFloat16") -> MatmulShape:
    return MatmulShape(op="aten::mm", m=4096, k=k, n=n, dtype=dtype, count=1, ns=round(ms * MS))


def test_an_odd_vocabulary_costs_up_to_half_of_its_products(build: Any) -> None:
    patterns = build.patterns(matmuls=(product(50_257), product(50_304)))

    [finding] = build.findings(unfriendly_shapes, build.traced_step(100), build.device(1000, compute=1000), patterns)

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (20 * MS, 10 * MS, 20 * MS)
    assert "4096x1024 by 1024x50257" in finding.message
    assert finding.advice == "Round 50257 up to a multiple of 64 (or 8), and pad."


@pytest.mark.parametrize(
    "healthy", [product(50_304), product(50_257, ms=5), product(1, k=1023), product(50_257, dtype="float")]
)
def test_aligned_short_vector_and_float32_products_are_not_reported(healthy: MatmulShape, build: Any) -> None:
    patterns = build.patterns(matmuls=(healthy,))
    device = build.device(1000, compute=1000)

    assert build.findings(unfriendly_shapes, build.traced_step(100), device, patterns) == []


def test_a_cpu_has_no_tensor_cores(build: Any) -> None:
    assert build.findings(unfriendly_shapes, build.step(100), build.patterns(matmuls=(product(50_257),))) == []
