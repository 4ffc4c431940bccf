"""The device spends the step moving data, with no compute beside it.

Problem: copies between host and device (or inside the device) that nothing overlaps. A utilisation
figure calls such a device busy.

How it shows: copies not hidden under compute take a quarter of the step or more.

Causes: parameters or optimizer state kept on the host and fetched layer by layer (offloading); batches
copied in the step's own stream; pageable host memory, which copies at a fraction of the speed and
makes an asynchronous copy block; tensors made on the host in every step.

Fix: do not move it, move it earlier, or move it beside compute.

    loader = DataLoader(dataset, pin_memory=True)
    batch = batch.to(device, non_blocking=True)
    mask = torch.ones(n, n, device=device)       # not: torch.ones(n, n).to(device)

Gain: at most all copying that is not hidden. No low end is known before a trial: it is 0.

Source: a quarter of the step is where a finding counts as critical, and where copies deserve to be
called what the step is about. Checked on traces of GPUs: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import CRITICAL, busiest_device, device_part, severity_of, whole_of

ID = "copies-dominate"

_WAYS = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "inside the device",
    "other": "of other kinds",
}


def check(measured: Measured) -> Iterator[Finding]:
    """Find copies that take a quarter of the step without compute beside them."""
    whole = whole_of(measured)
    device = busiest_device(measured)
    if whole is None or device is None:
        return
    cost_ns = device_part(device.exposed_copy_ns, device, whole)
    if cost_ns < CRITICAL * whole.wall_ns:
        return
    way = max(device.copies_ns, key=lambda name: device.copies_ns[name], default="other")
    pageable = device.pageable_ns / device.copy_ns if device.copy_ns else 0.0
    message = (
        f"Copies, most of them {_WAYS.get(way, way)}, take {percent(cost_ns, whole.wall_ns)} of the {whole.per} "
        f"with no compute beside them."
    )
    advice = (
        "Use pinned memory (pin_memory=True) with non_blocking=True, then copy the next batch while this one computes."
        if pageable > 0.5
        else "Keep the data on the device, or copy on a stream of its own while the device computes."
    )
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=message,
        advice=advice,
        confidence="medium",
        evidence=tuple(_evidence(device)),
        cost_ns=cost_ns,
        saving_low_ns=0,
        saving_high_ns=cost_ns,
    )


def _evidence(device: DeviceTime) -> Iterator[Evidence]:
    source = f"device {device.device}, the whole window"
    for way, ns in device.copies_ns.items():
        if not ns:
            continue
        yield Evidence(f"copies {_WAYS.get(way, way)}", round(ns / 1e6, 3), "ms", source)
        # 1 byte per ns is 1 GB/s.
        yield Evidence(f"speed {_WAYS.get(way, way)}", round(device.copy_bytes.get(way, 0) / ns, 2), "GB/s", source)
    yield Evidence("through pageable memory", round(device.pageable_ns / 1e6, 3), "ms", source)
    yield Evidence("busy", round(100 * device.busy_ns / device.window_ns, 1), "%", source)
    yield Evidence("compute", round(100 * device.compute_ns / device.window_ns, 1), "%", source)
