"""The device moves memory as fast as it can: a healthy verdict.

Problem: none. Most kernel time is in ops that come near the memory's bandwidth, and no row of ops is
left to fuse.

How it shows: the roofline places most of the kernels' time under the memory's roof, the device computes for at
least half of the step, and no other finding with a price reaches 5%.

Causes: elementwise ops, norms and optimizers move a byte or more for each operation.

Fix: faster training now takes fewer bytes, or a device with more bandwidth: lower precision, fused optimizers and
losses, a compiled model, activations computed again where they are cheap.

    model = torch.compile(model)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Gain: none is promised.

Source: the roofline model; bytes are the least that an op must move by its shapes (measures/op_work.py), peaks from
data sheets. Half is a plain majority. Needs shapes. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import MAJORITY, busiest_device, device_part, whole_of

ID = "memory-bound"


def check(measured: Measured) -> Iterator[Finding]:
    """Tell a device that computes most of the time and is limited by its memory; run when no problem was found."""
    whole, device = whole_of(measured), busiest_device(measured)
    if whole is None or device is None:
        return
    roofline = next((one for one in measured.roofline if one.device == device.device), None)
    if roofline is None or not roofline.device_ns:
        return
    memory_ns = roofline.time_ns.get("memory", 0)
    compute_ns = device_part(device.compute_ns, device, whole)
    if memory_ns < MAJORITY * roofline.device_ns or compute_ns < MAJORITY * whole.wall_ns:
        return
    points = [point for point in roofline.points if point.bound == "memory"]
    rate = sum(point.bytes * point.count for point in points) / max(1, sum(point.device_ns for point in points))
    yield Finding(
        rule=ID,
        severity="info",
        message=(
            f"The device computes {percent(compute_ns, whole.wall_ns)} of the {whole.per}, and "
            f"{percent(memory_ns, roofline.device_ns)} of that runs at the memory's limit ({rate:.0f} GB/s)."
        ),
        advice="The loop is healthy. Fewer bytes make it faster: lower precision, torch.compile, a fused loss.",
        confidence="medium",
        evidence=(
            *(
                Evidence(f"kernels: {bound}", round(ns / 1e6, 3), "ms", roofline.peaks_source or "roofline")
                for bound, ns in roofline.time_ns.items()
            ),
            *(
                Evidence(f"{point.op} {point.shapes}", round(100 * point.memory_share), "%", "of the bandwidth")
                for point in points[:3]
            ),
        ),
    )
