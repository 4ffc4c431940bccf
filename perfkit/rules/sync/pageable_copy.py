"""Batches are copied to the device from pageable memory.

Problem: the device can read only pinned host memory by itself. From other memory every copy goes through a
small pinned buffer, piece by piece, by the host: slower, and the host waits, whatever `non_blocking` says.

How it shows: copies from host to device whose source is pageable, with no compute beside them, take 5% of
the step or more.

Causes: a DataLoader without `pin_memory=True`; tensors made in the step (`torch.tensor(list)`), numpy
arrays; pinned batches that a collate function copied again.

Fix: pin in the loader, and let the copy run by itself.

    loader = DataLoader(dataset, pin_memory=True)
    batch = batch.to(device, non_blocking=True)

Gain: at the low end what faster copying gives: the copies' time without what pinned memory would need for the
same bytes; at the high end all of it, since a copy that runs by itself can hide under compute.

Source: nsys' cuda_memcpy_async rule warns of every such copy; here it is weighed. Pinned memory reaches
about 25 GB/s over PCIe 4.0 with 16 lanes, and 12 GB/s over PCIe 3.0, which is assumed. From 5% of the step on (see
input-bound). Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE, busiest_device, device_part, severity_of, whole_of

ID = "pageable-copy"

#: Bytes per second of a copy from pinned memory over PCIe 3.0 with 16 lanes.
_PINNED = 12e9


def check(measured: Measured) -> Iterator[Finding]:
    """Find exposed copies from pageable memory."""
    whole, device = whole_of(measured), busiest_device(measured)
    if whole is None or device is None:
        return
    copies = [
        copy
        for copy in measured.copies
        if copy.device == device.device and copy.direction == "HtoD" and copy.source == "Pageable"
    ]
    exposed = sum(copy.total_ns - copy.overlap_ns for copy in copies)
    cost_ns = device_part(min(exposed, device.exposed_copy_ns), device, whole)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    total_ns = sum(copy.total_ns for copy in copies)
    size = sum(copy.bytes or 0 for copy in copies)
    stays = min(1.0, size / _PINNED * 1e9 / total_ns) if size and total_ns else 1.0
    source = f"device {device.device}, the whole window"
    pinned = [loader.pin_memory for loader in measured.rank.loaders] if measured.rank is not None else []
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Copies to the device from pageable memory take {percent(cost_ns, whole.wall_ns)} of the {whole.per} "
            f"({ms(cost_ns)}), and the host waits for them."
        ),
        advice="DataLoader(..., pin_memory=True), then batch.to(device, non_blocking=True).",
        confidence="high" if pinned and not any(pinned) else "medium",
        evidence=(
            Evidence("copies", sum(copy.count for copy in copies), "", source),
            Evidence("copied", round(size / 2**20, 1), "MiB", source),
            Evidence("speed", round(size / total_ns, 2) if size and total_ns else None, "GB/s", source),
            Evidence("with no compute beside them", round(exposed / 1e6, 3), "ms", source),
            Evidence("pin_memory of the loaders", ", ".join(map(str, pinned)) or None, "", "rank.json"),
        ),
        cost_ns=cost_ns,
        saving_low_ns=round(cost_ns * (1 - stays)),
        saving_high_ns=cost_ns,
    )
