"""The host waits for every copy to the device, although the memory is pinned.

Problem: `tensor.to(device)` returns when the copy is done, and a copy waits for all work queued in its stream. The
device is then idle until the host has launched new work.

How it shows: the host waited for copies to the device from memory that is not pageable, and the device was idle because
of it, for 5% of the step or more.

Causes: `non_blocking=True` is missing; `torch.tensor(value, device="cuda")` in the step.

Fix: do not wait. Kernels that need the copy wait for it on the device.

    loader = DataLoader(dataset, pin_memory=True)
    batch = batch.to(device, non_blocking=True)

Saving: at most the time the host waited for these copies, as far as the device was idle because of a sync or a copy
call, or copied with no compute at the same time. At least half: the copy itself takes its time until another step hides
it.

Source: CUDA's rules for synchronous copies; nsys' cuda_memcpy_sync rule. Copies from pageable memory are reported by
pageable-copy. The threshold is 5% of the step. A half was chosen. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.measures.results.device import CopyTime

ID = "blocking-copy"
WHAT_IF = ("copy-waits", None)
CLAIMS = (Selector(owner="copies"), Selector(owner="idle", names=("copy call", "sync")))


def check(step: DeviceStepBudget, copies: tuple[CopyTime, ...]) -> Iterator[Finding]:
    """Find copies of pinned memory that the host waits for."""
    device = step.device
    waited_for = [
        copy
        for copy in copies
        if copy.device == device.device and copy.direction == "HtoD" and copy.source != "Pageable" and copy.blocking
    ]
    blocked = sum(copy.blocked_ns or 0 for copy in waited_for)
    exposed = sum(copy.total_ns - copy.overlap_ns for copy in waited_for)
    idle = device.causes.get("sync", 0) + device.causes.get("copy call", 0)
    cost = step.of_device(min(blocked, idle + min(exposed, device.exposed_copy_ns)))
    if step.is_negligible(cost):
        return
    source = f"device {device.device}, the whole window"
    yield step.finding(
        cost=cost,
        saving=(cost // 2, cost),
        message=(
            f"The host waits for copies to the device, {step.percent(cost)} of the {step.per} ({ms(cost)}) in which "
            "the device has nothing else to do."
        ),
        advice="batch.to(device, non_blocking=True): the memory is pinned, nothing needs to wait.",
        evidence=(
            Evidence("copies waited for", sum(copy.blocking or 0 for copy in waited_for), "", source),
            Evidence.ms("waited", blocked, source),
            Evidence.ms("device idle by syncs and copy calls", idle, source),
        ),
    )
