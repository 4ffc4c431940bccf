"""Which part of a device's arithmetic a step uses: model FLOPs utilization (MFU), with the peak it is measured by."""

from __future__ import annotations

import re

from perfkit.measures.results import Utilization
from perfkit.run.records import StepFlops

#: Device name as torch tells it (a regular expression for all of it) -> precision -> peak in TFLOP/s.
#: Dense peaks: where a datasheet prints the figure with structured sparsity, half of it. The same chip with fewer
#: units (a MIG slice, a custom board) has another name and is not guessed.
PEAKS: dict[str, dict[str, float]] = {
    # NVIDIA V100 datasheet (Jan 2020): Tensor 125 (SXM2), 112 (PCIe), 130 (V100S); single 15.7, 14, 16.4; double
    # 7.8, 7, 8.2. No bfloat16 and no TF32 units.
    r"Tesla V100-SXM2-(16|32)GB": {"float16": 125, "float32": 15.7, "float64": 7.8},
    r"Tesla V100-PCIE-(16|32)GB": {"float16": 112, "float32": 14, "float64": 7},
    r"Tesla V100S-PCIE-32GB": {"float16": 130, "float32": 16.4, "float64": 8.2},
    # NVIDIA T4 datasheet: mixed precision FP16/FP32 65, single precision 8.1.
    r"Tesla T4": {"float16": 65, "float32": 8.1},
    # NVIDIA A100 datasheet (40 and 80 GB, SXM and PCIe alike): BF16/FP16 Tensor 312, TF32 156, FP32 19.5, FP64
    # Tensor 19.5.
    r"(NVIDIA )?A100-SXM4-(40|80)GB|(NVIDIA )?A100-PCIE-40GB|NVIDIA A100 80GB PCIe": {
        "bfloat16": 312,
        "float16": 312,
        "tf32": 156,
        "float32": 19.5,
        "float64": 19.5,
    },
    # NVIDIA H100 datasheet and H200 datasheet, SXM: printed with sparsity BF16/FP16 1,979, TF32 989, FP8 3,958;
    # FP32 67, FP64 Tensor 67.
    r"NVIDIA H100 80GB HBM3|NVIDIA H200": {
        "bfloat16": 989.5,
        "float16": 989.5,
        "tf32": 494.5,
        "float8": 1979,
        "float32": 67,
        "float64": 67,
    },
    # NVIDIA H100 PCIe datasheet (80 GB): with sparsity BF16/FP16 1,513, TF32 756, FP8 3,026; FP32 51, FP64 Tensor 51.
    r"NVIDIA H100 PCIe": {
        "bfloat16": 756.5,
        "float16": 756.5,
        "tf32": 378,
        "float8": 1513,
        "float32": 51,
        "float64": 51,
    },
    # NVIDIA L4 datasheet: with sparsity BF16/FP16 242, TF32 120, FP8 485; FP32 30.3.
    r"NVIDIA L4": {"bfloat16": 121, "float16": 121, "tf32": 60, "float8": 242.5, "float32": 30.3},
    # NVIDIA L40S datasheet, which prints dense | sparse: BF16/FP16 362.05 | 733, TF32 183 | 366, FP8 733 | 1,466;
    # FP32 91.6.
    r"NVIDIA L40S": {"bfloat16": 362.05, "float16": 362.05, "tf32": 183, "float8": 733, "float32": 91.6},
    # AMD Instinct MI250X datasheet: matrix BF16/FP16 383, FP32 95.7, FP64 95.7 for a board of two dies; torch
    # sees each die as a device, so half.
    r"AMD Instinct MI250X": {"bfloat16": 191.5, "float16": 191.5, "float32": 47.85, "float64": 47.85},
    # AMD Instinct MI300X datasheet: BF16/FP16 1,307.4, FP8 2,614.9, FP32 matrix 163.4, FP64 matrix 163.4 (dense).
    r"AMD Instinct MI300X( OAM)?": {
        "bfloat16": 1307.4,
        "float16": 1307.4,
        "float8": 2614.9,
        "float32": 163.4,
        "float64": 163.4,
    },
}


def peaks_of(device: str) -> dict[str, float] | None:
    """Dense peaks of a device in TFLOP/s, by precision; None for a device that is not in the table."""
    return next((peaks for name, peaks in PEAKS.items() if re.fullmatch(name, device)), None)


def measure_utilization(flops: StepFlops | None, step_ns: int | None) -> Utilization | None:
    """MFU of a step of ``step_ns``; None where the operations, the step or the device's peak are not known.

    Operations in several precisions are each held against their own peak. What activation checkpointing computes
    again does not count: it is no part of the model.
    """
    if flops is None or flops.problem is not None or not step_ns or flops.device is None:
        return None
    peaks = peaks_of(flops.device)
    counted = {name: count for name, count in flops.by_precision.items() if count}
    if peaks is None or not counted or not counted.keys() <= peaks.keys():
        return None
    total = sum(counted.values())
    own = total - flops.recomputed
    # What the step would take if every unit computed at its peak.
    ideal_s = sum(count / (peaks[name] * 1e12) for name, count in counted.items())
    main = max(counted, key=lambda name: counted[name])
    step_s = step_ns / 1e9
    return Utilization(
        mfu=ideal_s * (own / total) / step_s,
        flops=own,
        recomputed=flops.recomputed,
        flops_per_s=own / step_s,
        precision=main,
        peak_flops_per_s=peaks[main] * 1e12,
        device=flops.device,
        source=(
            f"operations counted in step {flops.step}; dense peak of {flops.device} in {main}, {peaks[main]:g} TFLOP/s"
            + (", other precisions by their own" if len(counted) > 1 else "")
        ),
    )
