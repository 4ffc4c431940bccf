"""The device spends the step copying data while nothing computes.

Problem: copies between host and device, or inside the device, run while no kernel computes. A utilization figure counts
such a device as busy.

How it shows: copies that are not hidden under compute take a quarter of the step or more.

Causes: parameters or optimizer state kept on the host and fetched layer by layer (offloading); batches copied in the
stream that computes; pageable host memory, which copies at a fraction of the speed and makes an asynchronous copy
block; tensors created on the host in every step.

Fix: do not copy the data, copy it earlier, or copy it during compute.

    loader = DataLoader(dataset, pin_memory=True)
    batch = batch.to(device, non_blocking=True)
    mask = torch.ones(n, n, device=device)       # not: torch.ones(n, n).to(device)

Saving: at most all copying that is not hidden. The low end is 0, because none is known before a trial.

Source: the union of copies minus what overlaps with compute kernels. The threshold is a quarter of the step, where a
finding is critical. Checked on traces of GPUs; not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import CRITICAL, MAJORITY, DeviceStepBudget
from perfkit.measures.results.device import DeviceTime

ID = "copies-dominate"
CLAIMS = (Selector(owner="copies"), Selector(owner="idle", names=("copy call", "sync")))
#: How the copies are made is corrected before their number.
FOLLOWS = ("pageable-copy", "blocking-copy")

_DIRECTIONS = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "inside the device",
    "other": "of other kinds",
}


def check(step: DeviceStepBudget) -> Iterator[Finding]:
    """Find copies that take a quarter of the step while nothing computes."""
    device = step.device
    cost = step.of_device(device.exposed_copy_ns)
    if cost < CRITICAL * step.wall_ns:
        return
    most = max(device.copies_ns, key=lambda name: device.copies_ns[name], default="other")
    way = _DIRECTIONS.get(most, most)
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        message=f"Copies, most of them {way}, take {step.percent(cost)} of the {step.per} while nothing computes.",
        advice=(
            "Use pin_memory=True with non_blocking=True, then copy the next batch while this one computes."
            if device.pageable_ns > MAJORITY * device.copy_ns
            else "Keep the data on the device, or copy on a separate stream while the device computes."
        ),
        evidence=tuple(_evidence(device)),
    )


def _evidence(device: DeviceTime) -> Iterator[Evidence]:
    source = f"device {device.device}, the whole window"
    for name, ns in device.copies_ns.items():
        if ns:
            direction = _DIRECTIONS.get(name, name)
            yield Evidence.ms(f"copies {direction}", ns, source)
            # 1 byte per ns is 1 GB/s.
            yield Evidence(f"speed {direction}", round(device.copy_bytes.get(name, 0) / ns, 2), "GB/s", source)
    yield Evidence.ms("through pageable memory", device.pageable_ns, source)
    yield Evidence.percent("busy", device.busy_ns, device.window_ns, source)
    yield Evidence.percent("compute", device.compute_ns, device.window_ns, source)
