"""Batches are copied to the device from pageable memory.

Problem: the device can read only pinned host memory directly. From other memory the host copies piece by piece through
a small pinned buffer: slower, and the host waits whatever `non_blocking` says.

How it shows: copies to the device whose source is pageable, with no compute at the same time, take 5% of the step or
more.

Causes: a DataLoader without `pin_memory=True`; tensors created in the step (`torch.tensor(list)`), numpy arrays; pinned
batches that a collate function copied again.

Fix: pin in the loader, and do not wait for the copy.

    loader = DataLoader(dataset, pin_memory=True)
    batch = batch.to(device, non_blocking=True)

Saving: at least what faster copying saves: the copies' time minus what pinned memory would need for the same bytes. At
most all of it, because a copy that nobody waits for can run during compute.

Source: nsys' cuda_memcpy_async rule warns about every such copy; here its cost decides. Pinned memory reaches about
25 GB/s over PCIe 4.0 with 16 lanes and 12 GB/s over PCIe 3.0, which is assumed. The threshold is 5% of the step. Not
run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import AdvisedEdit, Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.measures.results.device import CopyTime
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.run.records import Rank

ID = "pageable-copy"
WHAT_IF = ("copy-waits", None)
CLAIMS = (Selector(owner="copies"), Selector(owner="idle", names=("copy call", "sync")))

#: Bytes per second of a copy from pinned memory over PCIe 3.0 with 16 lanes.
_PINNED = 12e9


def check(
    step: DeviceStepBudget, copies: tuple[CopyTime, ...], rank: Rank | None = None, loader: LoaderUse | None = None
) -> Iterator[Finding]:
    """Find copies from pageable memory that no compute hides."""
    device = step.device
    pageable = [
        copy
        for copy in copies
        if copy.device == device.device and copy.direction == "HtoD" and copy.source == "Pageable"
    ]
    exposed = sum(copy.total_ns - copy.overlap_ns for copy in pageable)
    cost = step.of_device(min(exposed, device.exposed_copy_ns))
    if step.is_negligible(cost):
        return
    total_ns = sum(copy.total_ns for copy in pageable)
    size = sum(copy.bytes or 0 for copy in pageable)
    remaining = min(1.0, size / _PINNED * 1e9 / total_ns) if size and total_ns else 1.0
    source = f"device {device.device}, the whole window"
    pinned = [loader.pin_memory for loader in rank.loaders] if rank is not None else []
    yield step.finding(
        cost=cost,
        saving=(cost * (1 - remaining), cost),
        change=loader.change if loader is not None else None,
        edit=AdvisedEdit.of(loader.change, pin_memory=True) if loader is not None else None,
        message=(
            f"Copies to the device from pageable memory take {step.percent(cost)} of the {step.per} ({ms(cost)}), and "
            "the host waits for them."
        ),
        advice="DataLoader(..., pin_memory=True), then batch.to(device, non_blocking=True).",
        confidence="high" if pinned and not any(pinned) else "medium",
        evidence=(
            Evidence("copies", sum(copy.count for copy in pageable), "", source),
            Evidence("copied", round(size / 2**20, 1), "MiB", source),
            Evidence("speed", round(size / total_ns, 2) if size and total_ns else None, "GB/s", source),
            Evidence.ms("with no compute at the same time", exposed, source),
            Evidence("pin_memory of the loaders", ", ".join(map(str, pinned)) or None, "", "rank.json"),
        ),
    )
