"""Nothing runs in half precision on a GPU that is made for it.

Problem: tensor cores multiply bfloat16 and float16 at twice the speed of TF32 and sixteen times that of
float32, and tensors of half the size take half the time through memory.

How it shows: no kernel in bfloat16, float16 or float8, and matrix products and convolutions take a quarter
of the step or more.

Causes: training in float32 from before there was a choice; autocast left out, or switched off in the part
that costs most.

Fix: autocast around the forward pass; with float16 also a gradient scaler.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Gain: at the high end products at the ratio of the two peaks; at the low end half of that. What becomes of the
model's quality is yours to check: bfloat16 keeps float32's range with 8 bits of precision.

Source: data sheets (measures/peaks.py); torch-tb-profiler advised AMP where no kernel used tensor cores. A
quarter is where a finding counts as critical: less is not worth another precision. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.device.peaks import peaks_of
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import CRITICAL, busiest_device, device_part, severity_of, whole_of

ID = "low-precision-unused"

_LOW = ("bfloat16", "float16", "float8")
#: A half-precision kernel now and then is no half-precision training.
_HARDLY = 0.01


def check(measured: Measured) -> Iterator[Finding]:
    """Find products that take a quarter of the step, none of them in half precision."""
    whole, device, kernels = whole_of(measured), busiest_device(measured), measured.kernels
    if whole is None or device is None or kernels is None or not kernels.total_ns or device.name is None:
        return
    peaks = peaks_of(device.name)
    best = next((name for name in _LOW if peaks is not None and name in peaks.tflops), None)
    low = sum(kernels.precisions_ns.get(name, 0) for name in _LOW)
    if peaks is None or best is None or low > _HARDLY * kernels.total_ns:
        return
    by_precision = {
        name: sum(
            row.total_ns
            for row in kernels.rows
            # Of a kernel whose name does not tell whether it uses tensor cores, the precision is not certain.
            if row.kernel_class in _PRODUCTS and row.precision == name and row.tensor_cores is not None
        )
        for name in ("float32", "tf32")
    }
    spent = sum(by_precision.values())
    part_ns = device_part(round(device.compute_ns * spent / kernels.total_ns), device, whole)
    if part_ns < CRITICAL * whole.wall_ns:
        return
    stays = sum(
        ns * min(1.0, peaks.tflops.get(name, peaks.tflops["float32"]) / peaks.tflops[best])
        for name, ns in by_precision.items()
        if "float32" in peaks.tflops
    )
    cost_ns = round(part_ns * (1 - stays / spent))
    source = f"device {device.device}, kernels by name"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"No kernel runs in half precision, and matrix products take {percent(part_ns, whole.wall_ns)} of the "
            f"{whole.per}."
        ),
        advice=f"torch.autocast(dtype=torch.{best}) around the forward pass, after a check of the model's quality.",
        confidence="medium",
        evidence=(
            *(
                Evidence(f"products in {name}", round(ns / 1e6, 3), "ms", source)
                for name, ns in by_precision.items()
                if ns
            ),
            Evidence(f"peak in {best}", peaks.tflops[best], "TFLOP/s", peaks.source),
        ),
        cost_ns=cost_ns,
        saving_low_ns=cost_ns // 2,
        saving_high_ns=cost_ns,
    )


_PRODUCTS = ("matmul", "convolution", "attention")
