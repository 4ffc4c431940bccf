"""Matrix products run in float32 on a GPU that could use TF32.

Problem: since Ampere, tensor cores multiply float32 tensors in TF32 (8 bits of exponent as float32, 10
of mantissa) at several times the speed; torch does not let matrix products use it by default.

How it shows: kernels of products in float32 that do not run on tensor cores, on a device whose data sheet has a
TF32 figure, take 5% of the step or more.

Causes: the default, `torch.get_float32_matmul_precision() == "highest"`; convolutions with
`torch.backends.cudnn.allow_tf32 = False`.

Fix: one line, before training; accumulation stays float32.

    torch.set_float32_matmul_precision("high")

    torch.backends.cudnn.allow_tf32 = True        # convolutions; the default

Gain: at the high end the ratio of the two peaks; at the low end half of it, since products limited by
memory gain nothing.

Source: data sheets (measures/peaks.py); torch's FP32MatMul pattern asks for the same setting. Where the
setting was recorded and is not "highest", matrix products are not told. From 5% of the step on
(see input-bound). Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.device.peaks import peaks_of
from perfkit.measures.results.kernels import KernelClass
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE, busiest_device, device_part, severity_of, whole_of

ID = "fp32-without-tf32"


def check(measured: Measured) -> Iterator[Finding]:
    """Find products in float32 without tensor cores where there is TF32."""
    whole, device, kernels = whole_of(measured), busiest_device(measured), measured.kernels
    if whole is None or device is None or kernels is None or not kernels.total_ns or device.name is None:
        return
    peaks = peaks_of(device.name)
    if peaks is None or "tf32" not in peaks.tflops or "float32" not in peaks.tflops:
        return
    setting = measured.rank.settings.get("torch.matmul_precision") if measured.rank is not None else None
    classes: tuple[KernelClass, ...] = ("matmul", "convolution") if setting in (None, "highest") else ("convolution",)
    slow = [
        row
        for row in kernels.rows
        if row.kernel_class in classes and row.precision == "float32" and row.tensor_cores is False
    ]
    spent = sum(row.total_ns for row in slow)
    part_ns = device_part(round(device.compute_ns * spent / kernels.total_ns), device, whole)
    cost_ns = round(part_ns * (1 - peaks.tflops["float32"] / peaks.tflops["tf32"]))
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    source = f"device {device.device}, kernels by name"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Matrix products in float32 take {percent(part_ns, whole.wall_ns)} of the {whole.per} without tensor "
            f"cores; {device.name} multiplies them in TF32."
        ),
        advice='torch.set_float32_matmul_precision("high") before training.',
        confidence="high" if setting == "highest" else "medium",
        evidence=(
            Evidence("products in float32", round(spent / 1e6, 3), "ms", source),
            Evidence("longest", slow[0].name[:100], "", source),
            Evidence("setting", setting, "", "rank.json"),
            Evidence("peak in float32", peaks.tflops["float32"], "TFLOP/s", peaks.source),
            Evidence("peak in TF32", peaks.tflops["tf32"], "TFLOP/s", peaks.source),
        ),
        cost_ns=cost_ns,
        saving_low_ns=cost_ns // 2,
        saving_high_ns=cost_ns,
    )
