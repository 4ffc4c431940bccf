"""Devices that the traces are recorded on: what they reach, not what their data sheets print."""

from __future__ import annotations

from typing import NamedTuple

BYTES = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "long int": 8}
BF16, FP16, FP32, FP64, TF32 = "c10::BFloat16", "c10::Half", "float", "double", "tf32"


class Chip(NamedTuple):
    """Rates that large products and streams reach: TFLOP/s by precision, GB/s of memory, GB/s over the bus from pinned
    memory; what the public measurements of the device show, which is 50 to 95% of the data sheet."""

    name: str
    sms: int
    products: dict[str, float]
    bandwidth: float
    bus: float
    architecture: str


A100 = Chip("NVIDIA A100-SXM4-80GB", 108, {BF16: 262, FP16: 262, TF32: 128, FP32: 18.2, FP64: 17.5}, 1770, 24, "sm80")
H100 = Chip("NVIDIA H100 80GB HBM3", 132, {BF16: 710, FP16: 700, TF32: 370, FP32: 48, FP64: 55}, 2960, 52, "sm90")
V100 = Chip("Tesla V100-SXM2-32GB", 80, {FP16: 95, FP32: 14.2, FP64: 7.0}, 800, 12, "volta")
#: 72 W: the clock falls under products.
L4 = Chip("NVIDIA L4", 58, {BF16: 68, FP16: 68, TF32: 38, FP32: 17, FP64: 0.45}, 262, 24, "sm80")
RTX = Chip("NVIDIA GeForce RTX 4090", 128, {BF16: 158, FP16: 158, TF32: 80, FP32: 62, FP64: 1.25}, 930, 24, "sm80")
MI300X = Chip("AMD Instinct MI300X", 304, {BF16: 640, FP16: 620, FP32: 105, FP64: 72}, 4300, 50, "gfx942")
