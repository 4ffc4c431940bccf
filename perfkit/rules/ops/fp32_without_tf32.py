"""Matrix products run in float32 on a GPU that could use TF32.

Problem: since Ampere, tensor cores multiply float32 tensors in TF32 (float32's 8 bits of exponent, 10 bits of mantissa)
at several times the speed. By default torch does not let matrix products use it.

How it shows: kernels of products in float32 that do not run on tensor cores, on a device whose data sheet has a figure
for TF32; TF32 would save 5% of the step or more.

Causes: the default, `torch.get_float32_matmul_precision() == "highest"`; for convolutions,
`torch.backends.cudnn.allow_tf32 = False`.

Fix: one line before training; sums are still accumulated in float32.

    torch.set_float32_matmul_precision("high")

    torch.backends.cudnn.allow_tf32 = True        # convolutions; the default

Saving: at most the ratio of the two peaks. The low end is half of that (chosen), since products that memory limits do
not get faster.

Source: data sheets (perfkit/limits/device_peaks.py). torch's FP32MatMul pattern recommends the same setting. Where
the recorded setting is not "highest", only convolutions are reported. The threshold is 5% of the step. On an H200
products in float32: 10 to 82% of the step predicted, 80% saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.limits.device_peaks import peaks_of
from perfkit.measures.results.kernels import Kernels
from perfkit.run.records import Rank

ID = "fp32-without-tf32"
CLAIMS = COMPUTING


def check(step: DeviceStepBudget, kernels: Kernels, rank: Rank | None = None) -> Iterator[Finding]:
    """Find products in float32 without tensor cores where there is TF32."""
    peaks = peaks_of(step.device.name or "")
    if peaks is None or "tf32" not in peaks.tflops or "float32" not in peaks.tflops:
        return
    setting = rank.settings.get("torch.matmul_precision") if rank is not None else None
    classes = ("matmul", "convolution") if setting in (None, "highest") else ("convolution",)
    slow = [
        row
        for row in kernels.rows
        if row.kernel_class in classes and row.precision == "float32" and row.tensor_cores is False
    ]
    total = sum(row.total_ns for row in slow)
    spent = step.of_kernels(total, kernels)
    cost = round(spent * (1 - peaks.tflops["float32"] / peaks.tflops["tf32"]))
    if step.is_negligible(cost):
        return
    source = f"device {step.device.device}, kernels by name"
    yield step.finding(
        cost=cost,
        saving=(cost // 2, cost),
        message=f"Products in float32 take {step.percent(spent)} of the {step.per}; {step.device.name} can use TF32.",
        advice='torch.set_float32_matmul_precision("high") before training.',
        confidence="high" if setting == "highest" else "medium",
        evidence=(
            Evidence.ms("products in float32", total, source),
            Evidence("longest", slow[0].name[:100], "", source),
            Evidence("setting", setting, "", "rank.json"),
            Evidence("peak in float32", peaks.tflops["float32"], "TFLOP/s", peaks.source),
            Evidence("peak in TF32", peaks.tflops["tf32"], "TFLOP/s", peaks.source),
        ),
    )
