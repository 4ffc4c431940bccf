"""Nothing runs in half precision on a GPU that is built for it.

Problem: tensor cores multiply bfloat16 and float16 at twice the speed of TF32 and sixteen times that of float32, and
tensors of half the size take half the time through memory.

How it shows: no kernel runs in bfloat16, float16 or float8, and matrix products and convolutions take a quarter of the
step or more.

Causes: training code in float32 from before half precision was common; autocast missing, or switched off in the part
that costs most.

Fix: autocast around the forward pass; with float16 also a gradient scaler.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Saving: at most the ratio of the two peaks for products, and half of the elementwise kernels between them, which move
half the bytes; at least half of what products save (chosen). Check the model's quality yourself: bfloat16 keeps
float32's range with 8 bits of precision.

Source: data sheets (perfkit/limits/device_peaks.py); torch-tb-profiler recommended AMP where no kernel used tensor
cores. The threshold is a quarter of the step, where a finding is critical: less does not justify another precision. On
an H200 products in TF32 with a ReLU between them took 8.5 ms a step, and 4.9 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import CRITICAL, DeviceStepBudget
from perfkit.limits.device_peaks import peaks_of
from perfkit.measures.results.kernels import Kernels

ID = "low-precision-unused"
CLAIMS = COMPUTING
#: TF32 is one line and changes no type; what half precision saves beyond it is visible after that.
FOLLOWS = ("fp32-without-tf32", "float64-in-step")

_HALF = ("bfloat16", "float16", "float8")
#: Below this share of the kernels' time, a half-precision kernel now and then is not half-precision training.
_RARE = 0.01
_PRODUCTS = ("matmul", "convolution", "attention")
#: What tensors of half the size save of the time of kernels that only read and write them.
_BYTES = 0.5


def check(step: DeviceStepBudget, kernels: Kernels) -> Iterator[Finding]:
    """Find products that take a quarter of the step, none of them in half precision."""
    peaks = peaks_of(step.device.name or "")
    best = next((name for name in _HALF if peaks is not None and name in peaks.tflops), None)
    if peaks is None or best is None:
        return
    if sum(kernels.precisions_ns.get(name, 0) for name in _HALF) > _RARE * kernels.total_ns:
        return
    by_precision = {
        name: sum(
            row.total_ns
            for row in kernels.rows
            # Where a kernel's name does not show whether it uses tensor cores, its precision is not certain.
            if row.kernel_class in _PRODUCTS and row.precision == name and row.tensor_cores is not None
        )
        for name in ("float32", "tf32")
    }
    total = sum(by_precision.values())
    spent = step.of_kernels(total, kernels)
    if spent < CRITICAL * step.wall_ns:
        return
    remaining = sum(
        ns * min(1.0, peaks.tflops.get(name, peaks.tflops["float32"]) / peaks.tflops[best])
        for name, ns in by_precision.items()
        if "float32" in peaks.tflops
    )
    products = round(spent * (1 - remaining / total))
    # Optimizers keep their parameters in float32, and autocast computes norms and losses in it.
    between = sum(
        row.total_ns for row in kernels.rows if row.kernel_class == "elementwise" and row.precision == "float32"
    )
    cost = products + round(_BYTES * step.of_kernels(between, kernels))
    source = f"device {step.device.device}, kernels by name"
    yield step.finding(
        cost=cost,
        saving=(products // 2, cost),
        message=f"No kernel runs in half precision, and matrix products take {step.percent(spent)} of the {step.per}.",
        advice=f"torch.autocast(dtype=torch.{best}) around the forward pass, after a check of the model's quality.",
        evidence=(
            *(Evidence.ms(f"products in {name}", ns, source) for name, ns in by_precision.items() if ns),
            *([Evidence.ms("elementwise in float32", between, source)] if between else []),
            Evidence(f"peak in {best}", peaks.tflops[best], "TFLOP/s", peaks.source),
        ),
    )
