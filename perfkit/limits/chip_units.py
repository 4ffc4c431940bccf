"""What a chip of NVIDIA's computes in a cycle, by its compute capability: the peaks of all its versions follow.

Sources: NVIDIA's white papers, in them the tables of each architecture's multiprocessor: V100 (2017), Turing (2018),
A100 (2020), GA102 (2021), Ada (2023), H100 (2022), RTX Blackwell (2025); the Blackwell technical brief (2024).
"""

from __future__ import annotations

from typing import NamedTuple


class ChipUnits(NamedTuple):
    """FLOP in one cycle of one multiprocessor, by precision, dense, with FP32 accumulation; and a usual clock in GHz.

    ``clock_ghz`` is between the boost clocks of the capability's cards: 4% off in the median of those of
    `perfkit.limits.geforce_cards`, 23% at most.
    """

    flop: dict[str, int]
    clock_ghz: float


_TURING = {"float16": 1024, "float32": 128}
_GA10X = {"bfloat16": 1024, "float16": 1024, "tf32": 512, "float32": 256}
_ADA = {"bfloat16": 1024, "float16": 1024, "tf32": 512, "float8": 2048, "float32": 256}

#: Compute capability -> its multiprocessor. Double precision is left out where there are no units worth a name for it.
CHIPS: dict[tuple[int, int], ChipUnits] = {
    (7, 0): ChipUnits({"float16": 1024, "float32": 128, "float64": 64}, 1.53),
    (7, 5): ChipUnits(_TURING, 1.6),
    (8, 0): ChipUnits({"bfloat16": 2048, "float16": 2048, "tf32": 1024, "float32": 128, "float64": 128}, 1.41),
    (8, 6): ChipUnits(_GA10X, 1.7),
    (8, 9): ChipUnits(_ADA, 2.5),
    (9, 0): ChipUnits(
        {"bfloat16": 4096, "float16": 4096, "tf32": 2048, "float8": 8192, "float32": 256, "float64": 256}, 1.8
    ),
    # The documents disagree on what it does in single and in double precision.
    (10, 0): ChipUnits({"bfloat16": 8192, "float16": 8192, "tf32": 4096, "float8": 16384}, 1.85),
    (12, 0): ChipUnits(_ADA, 2.5),
}
#: GeForce cards of these accumulate in FP32 half as fast as the same chip's cards for work.
_HALVED = ("bfloat16", "float16", "tf32", "float8")


def tflops_of(
    capability: tuple[int, int], multiprocessors: int, clock_ghz: float, *, geforce: bool
) -> dict[str, float]:
    """TFLOP/s by precision of a chip with these units at this clock; empty for an unknown capability."""
    chip = CHIPS.get(capability)
    if chip is None:
        return {}
    halved = _HALVED if geforce else ()
    return {
        name: flop / (2 if name in halved else 1) * multiprocessors * clock_ghz / 1e3
        for name, flop in chip.flop.items()
    }
