"""Matrix products in half precision have sizes that tensor cores cannot take as they are.

Problem: tensor cores work on tiles and load 16 bytes at a time, which is 8 numbers in half precision. With a dimension
that is not a multiple of 8, rows start at addresses that are not aligned, so a slower kernel is chosen.

How it shows: products in bfloat16 or float16 with such a dimension; aligned, they could save 5% of the step or more.
Needs input shapes, which the step recorded for lines has.

Causes: a vocabulary of 50,257; a number of classes, heads or features chosen without regard to alignment; an odd last
batch.

Fix: round up, and leave the rest unused.

    vocabulary = 64 * math.ceil(50_257 / 64)          # 50,304

Saving: a quarter to half of these products' time. It is nothing where the kernel handles the size well.

Source: NVIDIA's "Matrix Multiplication Background": tensor cores reach full speed with 16-byte alignment, and half to a
quarter of it without. Products with a vector (a dimension of 1) are not counted. torch's MatMulDimInFP16 pattern
requires the same multiple. The threshold is 5% of the step. Found on an H200, where no correction was timed.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.measures.results.patterns import MatmulShape, Patterns

ID = "unfriendly-shapes"
CLAIMS = COMPUTING

#: Types of which 16 bytes hold 8 numbers.
_HALF = ("c10::BFloat16", "c10::Half")
_MULTIPLE = 8
#: What alignment saves of these products' time, at the low end and at the high end (chosen).
_SAVING = (0.25, 0.5)


def check(step: DeviceStepBudget, patterns: Patterns) -> Iterator[Finding]:
    """Find products whose dimensions are not aligned."""
    odd = [product for product in patterns.matmuls if _unaligned(product)]
    low, cost = (step.of_pattern(share * sum(product.ns for product in odd), patterns) for share in _SAVING)
    if not odd or step.is_negligible(cost):
        return
    worst = odd[0]
    yield step.finding(
        cost=cost,
        saving=(low, cost),
        spent=worst.at,
        message=f"Half-precision products such as {_sizes(worst)} are not aligned: up to {ms(cost)} could be saved.",
        advice=f"Round {', '.join(str(one) for one in _unaligned(worst))} up to a multiple of 64 (or 8), and pad.",
        evidence=tuple(
            Evidence.ms(f"{one.op} {_sizes(one)}", one.ns, f"{patterns.source}, {one.dtype}") for one in odd[:5]
        ),
    )


def _sizes(product: MatmulShape) -> str:
    return f"{product.m}x{product.k} by {product.k}x{product.n}"


def _unaligned(product: MatmulShape) -> list[int]:
    """The dimensions that are lengths of rows in memory, of operands or result, and not a multiple."""
    if product.dtype not in _HALF or 1 in (product.m, product.k, product.n):
        return []
    # Rows of the operands and of the result are k and n long; m counts rows.
    return [length for length in dict.fromkeys((product.k, product.n)) if length % _MULTIPLE]
