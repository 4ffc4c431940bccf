"""The host waits for every copy to the device, although the memory is pinned.

Problem: `tensor.to(device)` returns when the copy is done, and a copy waits for all that its stream has
queued. The device is then out of work until the host has launched again.

How it shows: the host waited for copies from host to device that are not from pageable memory, and the
device was idle for it, for 5% of the step or more.

Causes: `non_blocking=True` left out; `torch.tensor(value, device="cuda")` in the step.

Fix: do not wait; the kernels behind the copy wait by themselves.

    loader = DataLoader(dataset, pin_memory=True)
    batch = batch.to(device, non_blocking=True)

Gain: the time the host waited for them, as far as the device was idle because of a sync or a copy call, or
copying with nothing beside it. The low end is half: the copy itself takes its time until another step hides it.

Source: CUDA's rules for synchronous copies; nsys' cuda_memcpy_sync rule. Copies from pageable memory have
a rule of their own (pageable-copy). From 5% of the step on (see input-bound). Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE, busiest_device, device_part, severity_of, whole_of

ID = "blocking-copy"


def check(measured: Measured) -> Iterator[Finding]:
    """Find copies of pinned memory that the host waits for."""
    whole, device = whole_of(measured), busiest_device(measured)
    if whole is None or device is None:
        return
    copies = [
        copy
        for copy in measured.copies
        if copy.device == device.device and copy.direction == "HtoD" and copy.source != "Pageable" and copy.blocking
    ]
    blocked = sum(copy.blocked_ns or 0 for copy in copies)
    exposed = sum(copy.total_ns - copy.overlap_ns for copy in copies)
    idle = device.causes.get("sync", 0) + device.causes.get("copy call", 0)
    cost_ns = device_part(min(blocked, idle + min(exposed, device.exposed_copy_ns)), device, whole)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    source = f"device {device.device}, the whole window"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"The host waits for copies to the device, {percent(cost_ns, whole.wall_ns)} of the {whole.per} "
            f"({ms(cost_ns)}) in which the device has nothing else to do."
        ),
        advice="batch.to(device, non_blocking=True): the memory is pinned, nothing needs to wait.",
        confidence="medium",
        evidence=(
            Evidence("copies waited for", sum(copy.blocking or 0 for copy in copies), "", source),
            Evidence("waited", round(blocked / 1e6, 3), "ms", source),
            Evidence("device idle by syncs and copy calls", round(idle / 1e6, 3), "ms", source),
        ),
        cost_ns=cost_ns,
        saving_low_ns=cost_ns // 2,
        saving_high_ns=cost_ns,
    )
