"""The step computes: a healthy verdict.

Problem: none. Most of the step is forward, backward and optimizer, or the device spends it in compute
kernels, and nothing that perfkit looks for costs more than 5% of it.

How it shows: computing takes at least half of the step, and no other finding with a price reaches 5%.

Fix: faster training now takes less work or a faster processor, not a better loop: lower precision, a
fused or compiled model, a smaller model, a larger batch where the device is not full, more devices.

    model = torch.compile(model)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Where the trace has shapes and the device's peaks are known, the roofline tells how near the kernels come to
arithmetic's limit; where most of them are limited by memory, memory-bound speaks instead.

Gain: none is promised: "nothing to gain" is said of the loop, and of the kernels only where the roofline tells.

Source: half is a plain majority. 5% is the threshold from which the other rules tell a problem. The
device side was read from traces of GPUs: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernels import Roofline
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import MAJORITY, busiest_device, computing, whole_of

ID = "compute-bound"


def check(measured: Measured) -> Iterator[Finding]:
    """Tell a step that computes most of the time; run when no problem with a price was found."""
    whole = whole_of(measured)
    parts = computing(measured, whole) if whole is not None else {}
    total_ns = sum(part.ns for part in parts.values())
    if whole is None or total_ns < MAJORITY * whole.wall_ns:
        return
    roofline = _roofline(measured)
    if roofline is not None and roofline.time_ns.get("memory", 0) >= MAJORITY * roofline.device_ns:
        return
    names = ", ".join(f"{name} {percent(part.ns, whole.wall_ns)}" for name, part in parts.items())
    near = roofline.time_ns.get("compute", 0) if roofline is not None else 0
    roof = (
        f" Of the kernels' time {percent(near, roofline.device_ns)} is limited by arithmetic."
        if roofline and near
        else ""
    )
    yield Finding(
        rule=ID,
        severity="info",
        message=(
            f"Computing takes {percent(total_ns, whole.wall_ns)} of the "
            f"{ms(whole.wall_ns)} {whole.per} ({names}).{roof}"
        ),
        advice="The loop is healthy. Next: torch.compile, lower precision (autocast), a larger batch, more devices.",
        confidence="medium",
        evidence=(
            *(Evidence(name, round(part.ns / 1e6, 3), "ms", part.source) for name, part in parts.items()),
            *(
                Evidence(f"kernels: {bound}", round(ns / 1e6, 3), "ms", "roofline")
                for bound, ns in (roofline.time_ns.items() if roofline is not None else ())
            ),
        ),
    )


def _roofline(measured: Measured) -> Roofline | None:
    """The busiest device's, where kernels could be placed under it."""
    device = busiest_device(measured)
    if device is None:
        return None
    found = next((one for one in measured.roofline if one.device == device.device), None)
    return found if found is not None and found.problem is None and found.device_ns else None
