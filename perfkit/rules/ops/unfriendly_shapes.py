"""Matrix products in half precision have sizes that tensor cores cannot take as they are.

Problem: tensor cores work on tiles, and load 16 bytes at a time: 8 numbers of half precision. A
dimension that is no multiple of 8 makes every row begin somewhere else, so a slower kernel is chosen.

How it shows: products in bfloat16 or float16 with such a dimension take 5% of the step or more. Needs
shapes, which the step for lines has.

Causes: a vocabulary of 50,257; a number of classes, heads or features chosen freely; an odd last batch.

Fix: round up, and leave the rest unused.

    vocabulary = 64 * math.ceil(50_257 / 64)          # 50,304

Gain: up to half of these products' time; nothing where the kernel copes with it. The low end is a quarter.

Source: NVIDIA's "Matrix Multiplication Background": with 16-byte alignment tensor cores run at full speed;
dimensions without it ran at half to a quarter of it there. Dimensions of 1 are products with a vector, and are left
out. torch's MatMulDimInFP16 pattern asks for the same multiple. From 5% of the step on (see input-bound).
Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.patterns import MatmulShape
from perfkit.rules._pattern_cost import op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, severity_of, whole_of

ID = "unfriendly-shapes"

#: Type -> numbers in 16 bytes.
_MULTIPLE = {"c10::BFloat16": 8, "c10::Half": 8}
_GAIN = (0.25, 0.5)


def check(measured: Measured) -> Iterator[Finding]:
    """Find products whose dimensions are not aligned."""
    whole, patterns = whole_of(measured), measured.patterns
    if whole is None or patterns is None or not measured.devices:
        return
    odd = [product for product in patterns.matmuls if _unaligned(product)]
    high_ns = op_part(_GAIN[1] * sum(product.ns for product in odd), patterns, whole)
    if not odd or high_ns < NEGLIGIBLE * whole.wall_ns:
        return
    worst = odd[0]
    sizes = f"{worst.m}x{worst.k} by {worst.k}x{worst.n}"
    yield Finding(
        rule=ID,
        severity=severity_of(high_ns, whole),
        message=(
            f"Matrix products in half precision have dimensions that are no multiple of 8 ({sizes}): "
            f"tensor cores may lose up to {ms(high_ns)}."
        ),
        advice=f"Round {', '.join(str(one) for one in _unaligned(worst))} up to a multiple of 64 (or 8), and pad.",
        confidence="medium",
        evidence=tuple(
            Evidence(
                f"{one.op} {one.m}x{one.k} by {one.k}x{one.n}",
                round(one.ns / 1e6, 3),
                "ms",
                f"{patterns.source}, {one.dtype}",
            )
            for one in odd[:5]
        ),
        cost_ns=high_ns,
        saving_low_ns=op_part(_GAIN[0] * sum(product.ns for product in odd), patterns, whole),
        saving_high_ns=high_ns,
        **where(worst.at, measured),
    )


def _unaligned(product: MatmulShape) -> list[int]:
    """The dimensions that rows or columns of the operands have in memory and that are no multiple."""
    multiple = _MULTIPLE.get(product.dtype)
    if multiple is None or 1 in (product.m, product.k, product.n):
        return []
    # Rows of the operands and of the result are k and n long; m counts rows.
    return [length for length in dict.fromkeys((product.k, product.n)) if length % multiple]
