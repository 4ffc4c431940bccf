"""The step computes in float64.

Problem: float64 moves twice the bytes of float32, fills half of a processor's vector lanes, and on most
GPUs runs at 1/32 to 1/64 of float32's speed. Training hardly ever needs it.

How it shows: ops of the step read tensors of type double, or kernels compute in it, for 5% of the
step or more.

Causes: numpy's arrays are float64, so `torch.from_numpy` is; `.double()` against a type error; a constant
or a window in float64 that turns all that it touches into float64.

Fix: convert once, where the data comes in.

    x = torch.from_numpy(array).float()                      # or array.astype(np.float32)
    self.register_buffer("window", torch.hann_window(512))   # float32; not torch.from_numpy(np.hanning(512))

Gain: on a CPU 42 to 80% of the time of these ops: vectors hold twice as many float32 and memory moves half
the bytes, which is 50%; less where an op's fixed cost is much of it, more where float32 has a faster
kernel, and where one operand was float32 and is converted in every call. On a GPU half of it at least, and
at most all but 1/32.

Source: bytes and vector widths; eleven ops with their backward, on one CPU, one thread, lost 32 to 75% of
their time in float32, seven of them 47 to 56%, and one of 10,000 elements 7%; peaks of devices from their
data sheets (measures/peaks.py). From 5% of the step on (see input-bound). The GPU side: not run on a GPU
yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.patterns import DtypeTime
from perfkit.rules._pattern_cost import op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, Part, Whole, busiest_device, device_part, severity_of, whole_of

ID = "float64-in-step"

_GAIN = (0.42, 0.8)
_ON_DEVICE = (0.5, 31 / 32)


def check(measured: Measured) -> Iterator[Finding]:
    """Find the time in float64, by ops and their types, else by kernels."""
    whole = whole_of(measured)
    if whole is None:
        return
    part, places = _by_ops(measured, whole)
    low, high = _GAIN
    if measured.devices:
        low, high = _ON_DEVICE
        part = part or _by_kernels(measured, whole)
    if part is None or high * part.ns < NEGLIGIBLE * whole.wall_ns:
        return
    # Where the type comes in is what is to be changed; else the line that it costs most at.
    enters = [one for one in places if one.mixed and one.at is not None]
    known = [one for one in places if one.at is not None]
    first = next(iter(enters or known), None)
    evidence = [Evidence("time in float64", round(part.ns / 1e6, 3), "ms", part.source)]
    evidence += [
        Evidence("line of float64", f"{one.at.file}:{one.at.line}", "", f"{ms(one.ns)} of the recorded step")
        for one in known[:4]
        if one.at is not None
    ]
    cost_ns = round(high * part.ns)
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=f"Ops in float64 take {percent(part.ns, whole.wall_ns)} of the {whole.per}; float32 takes about half.",
        advice="Convert to float32 where the data comes in: torch.from_numpy(x).float(), buffers in float32.",
        confidence="medium",
        evidence=tuple(evidence),
        cost_ns=cost_ns,
        saving_low_ns=round(low * part.ns),
        saving_high_ns=cost_ns,
        **where(first.at if first is not None else None, measured),
    )


def _by_ops(measured: Measured, whole: Whole) -> tuple[Part | None, list[DtypeTime]]:
    patterns = measured.patterns
    if patterns is None or not patterns.dtypes:
        return None, []
    places = [one for one in patterns.dtypes if one.dtype == "float64"]
    ns = op_part(sum(one.ns for one in places), patterns, whole)
    return Part(ns, f"{patterns.source}: ops that read doubles"), places


def _by_kernels(measured: Measured, whole: Whole) -> Part | None:
    kernels, device = measured.kernels, busiest_device(measured)
    if kernels is None or device is None or not kernels.total_ns:
        return None
    share = kernels.precisions_ns.get("float64", 0) / kernels.total_ns
    return Part(device_part(round(device.compute_ns * share), device, whole), "kernels whose name says double")
