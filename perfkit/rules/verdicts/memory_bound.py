"""The device moves memory as fast as it can: a healthy verdict.

Problem: none. Most kernel time is in ops that come near the memory's bandwidth, and no chain of ops is left to fuse.

How it shows: the roofline places most of the kernels' time at the memory's limit, the device computes for at least half
of the step, and no other finding with a cost reaches 5%.

Causes: elementwise ops, norms and optimizers move a byte or more for each operation.

Fix: faster training now takes fewer bytes or a device with more bandwidth: lower precision, fused optimizers and
losses, a compiled model, recomputing activations where that is cheap.

    model = torch.compile(model)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Saving: none is promised.

Source: the roofline model. Bytes are the minimum that an op must move by its shapes (`perfkit.measures.ops`), peaks
come from data sheets. Half is a plain majority. Needs shapes. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MAJORITY, DeviceStepBudget
from perfkit.rules.verdicts._device_roofline import DeviceRoofline

ID = "memory-bound"
#: Nothing that this rule reports should be changed in the loop.
HEALTHY = True


def check(step: DeviceStepBudget, roofline: DeviceRoofline) -> Iterator[Finding]:
    """Report a device that computes most of the time, limited by its memory; run where no problem was found."""
    memory = roofline.time_ns.get("memory", 0)
    compute = step.of_device(step.device.compute_ns)
    if memory < MAJORITY * roofline.device_ns or compute < MAJORITY * step.wall_ns:
        return
    points = [point for point in roofline.points if point.bound == "memory"]
    rate = sum(point.bytes * point.count for point in points) / max(1, sum(point.device_ns for point in points))
    yield Finding(
        severity="info",
        message=(
            f"The device computes {step.percent(compute)} of the {step.per}, and "
            f"{percent(memory, roofline.device_ns)} of that runs at the memory's limit ({rate:.0f} GB/s)."
        ),
        advice="The loop is healthy. To go faster, move fewer bytes: lower precision, torch.compile, a fused loss.",
        evidence=(
            *(
                Evidence.ms(f"kernels: {bound}", ns, roofline.peaks_source or "roofline")
                for bound, ns in roofline.time_ns.items()
            ),
            *(
                Evidence(f"{point.op} {point.shapes}", round(100 * point.memory_share), "%", "of the bandwidth")
                for point in points[:3]
            ),
        ),
    )
