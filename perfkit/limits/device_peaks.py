"""Peaks of devices: arithmetic by precision and memory bandwidth, each with its source."""

from __future__ import annotations

import re
from typing import NamedTuple


class Peaks(NamedTuple):
    """Peaks of one device.

    ``tflops`` is in TFLOP/s by precision, dense: where a document prints the figure with structured sparsity, half of
    it. Tensor cores count with the FP32 accumulation that torch uses. A precision that is not in the document,
    or that the chip lacks, is not in it. ``bandwidth`` is in GB/s (10^9 bytes), of the device's own memory.
    """

    tflops: dict[str, float]
    bandwidth: float
    source: str

    def ridge(self, precision: str) -> float | None:
        """FLOP per byte above which arithmetic, not memory, is the limit; None for an unknown precision."""
        tflops = self.tflops.get(precision)
        return tflops * 1e3 / self.bandwidth if tflops is not None else None


#: A100 data sheet: the same arithmetic for all of them.
_A100 = {"bfloat16": 312, "float16": 312, "tf32": 156, "float32": 19.5, "float64": 19.5}
#: H100 and H200 data sheets, SXM: with sparsity BF16/FP16 1,979, TF32 989, FP8 3,958; FP32 67, FP64 Tensor 67.
_HOPPER_SXM = {"bfloat16": 989.5, "float16": 989.5, "tf32": 494.5, "float8": 1979, "float32": 67, "float64": 67}

#: Device name as torch reports it (a regular expression for all of it) -> its peaks. The same chip with fewer units (a
#: MIG slice, a custom board) has another name and is not guessed.
PEAKS: dict[str, Peaks] = {
    # No bfloat16 and no TF32 units. Single precision and double precision without tensor cores.
    r"Tesla V100-SXM2-(16|32)GB": Peaks(
        {"float16": 125, "float32": 15.7, "float64": 7.8}, 900, "NVIDIA V100 data sheet (January 2020)"
    ),
    r"Tesla V100-PCIE-(16|32)GB": Peaks(
        {"float16": 112, "float32": 14, "float64": 7}, 900, "NVIDIA V100 data sheet (January 2020)"
    ),
    r"Tesla V100S-PCIE-32GB": Peaks(
        {"float16": 130, "float32": 16.4, "float64": 8.2}, 1134, "NVIDIA V100 data sheet (January 2020)"
    ),
    r"Tesla T4": Peaks({"float16": 65, "float32": 8.1}, 300, "NVIDIA T4 data sheet"),
    r"(NVIDIA )?A100-(SXM4|PCIE)-40GB": Peaks(_A100, 1555, "NVIDIA A100 data sheet"),
    r"(NVIDIA )?A100-SXM4-80GB": Peaks(_A100, 2039, "NVIDIA A100 data sheet"),
    r"NVIDIA A100 80GB PCIe": Peaks(_A100, 1935, "NVIDIA A100 data sheet"),
    # Tensor cores of these accumulate in FP16 twice as fast; torch accumulates in FP32.
    r"(NVIDIA )?GeForce RTX 3090": Peaks(
        {"bfloat16": 71, "float16": 71, "tf32": 35.6, "float32": 35.6}, 936, "NVIDIA GA102 white paper, appendix A"
    ),
    r"NVIDIA GeForce RTX 4090": Peaks(
        {"bfloat16": 165.2, "float16": 165.2, "tf32": 82.6, "float8": 330.3, "float32": 82.6},
        1008,
        "NVIDIA Ada white paper, appendix A",
    ),
    r"NVIDIA H100 80GB HBM3": Peaks(_HOPPER_SXM, 3350, "NVIDIA H100 data sheet, SXM"),
    r"NVIDIA H200": Peaks(_HOPPER_SXM, 4800, "NVIDIA H200 data sheet, SXM"),
    # Printed with sparsity: BF16/FP16 1,513, TF32 756, FP8 3,026; FP32 51, FP64 Tensor 51.
    r"NVIDIA H100 PCIe": Peaks(
        {"bfloat16": 756.5, "float16": 756.5, "tf32": 378, "float8": 1513, "float32": 51, "float64": 51},
        2000,
        "NVIDIA H100 PCIe data sheet (80 GB)",
    ),
    # With sparsity: FP16/BF16 4.5, FP8 9, TF32 2.2 PFLOP/s. The documents disagree on FP32 and FP64.
    r"NVIDIA B200": Peaks(
        {"bfloat16": 2250, "float16": 2250, "tf32": 1100, "float8": 4500},
        8000,
        "NVIDIA Blackwell architecture technical brief, HGX B200",
    ),
    # With sparsity: BF16/FP16 242, TF32 120, FP8 485; FP32 30.3.
    r"NVIDIA L4": Peaks(
        {"bfloat16": 121, "float16": 121, "tf32": 60, "float8": 242.5, "float32": 30.3}, 300, "NVIDIA L4 data sheet"
    ),
    # Printed dense | sparse: BF16/FP16 362.05 | 733, TF32 183 | 366, FP8 733 | 1,466; FP32 91.6.
    r"NVIDIA L40S": Peaks(
        {"bfloat16": 362.05, "float16": 362.05, "tf32": 183, "float8": 733, "float32": 91.6},
        864,
        "NVIDIA L40S data sheet",
    ),
    # Matrix BF16/FP16 383, FP32 95.7, FP64 95.7, memory 3,276.8 GB/s for a board of two dies; torch sees each die as
    # a device, so half.
    r"AMD Instinct MI250X": Peaks(
        {"bfloat16": 191.5, "float16": 191.5, "float32": 47.85, "float64": 47.85},
        1638.4,
        "AMD Instinct MI250X data sheet, one of two dies",
    ),
    r"AMD Instinct MI300X( OAM)?": Peaks(
        {"bfloat16": 1307.4, "float16": 1307.4, "float8": 2614.9, "float32": 163.4, "float64": 163.4},
        5300,
        "AMD Instinct MI300X data sheet",
    ),
}


def peaks_of(device: str) -> Peaks | None:
    """Peaks of a device by its name; None for one that is not in the table."""
    return next((peaks for name, peaks in PEAKS.items() if re.fullmatch(name, device)), None)
