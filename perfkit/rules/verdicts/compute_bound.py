"""The step computes: a healthy verdict.

Problem: none. Most of the step is forward, backward and optimizer, or the device spends it in compute kernels, and
nothing that perfkit looks for costs more than 5% of it.

How it shows: computing takes at least half of the step, and no other finding with a cost reaches 5%.

Fix: faster training now takes less work or a faster processor and not a better loop: lower precision, a fused or
compiled model, a smaller model, a larger batch where the device is not full, more devices.

    model = torch.compile(model)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Where the trace has shapes and the device's peaks are known, the roofline shows how near the kernels come to the limit
of arithmetic. Where memory limits most of them, memory-bound is reported instead.

Saving: none is promised. "No savings found" is about the loop, and about kernels only where a roofline exists.

Source: half is a plain majority. 5% is the threshold of the other rules. The device side was checked on traces of GPUs;
not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.rules.verdicts._device_roofline import DeviceRoofline

ID = "compute-bound"
#: Nothing that this rule reports should be changed in the loop.
HEALTHY = True


def check(step: StepBudget, roofline: DeviceRoofline | None = None) -> Iterator[Finding]:
    """Report a step that computes most of the time; run where no problem could be quantified."""
    parts = step.computing()
    total = sum(part.ns for part in parts.values())
    bounds = roofline.time_ns if roofline is not None else {}
    device_ns = roofline.device_ns if roofline is not None else 0
    if total < MAJORITY * step.wall_ns or (bounds and bounds.get("memory", 0) >= MAJORITY * device_ns):
        return
    names = ", ".join(f"{name} {step.percent(part.ns)}" for name, part in parts.items())
    arithmetic = bounds.get("compute", 0)
    limit = f" Arithmetic limits {percent(arithmetic, device_ns)} of the kernels' time." if arithmetic else ""
    yield Finding(
        severity="info",
        message=f"Computing takes {step.percent(total)} of the {ms(step.wall_ns)} {step.per} ({names}).{limit}",
        advice="The loop is healthy. Next: torch.compile, lower precision (autocast), a larger batch, more devices.",
        evidence=(
            *(Evidence.ms(name, part.ns, part.source) for name, part in parts.items()),
            *(Evidence.ms(f"kernels: {bound}", ns, "roofline") for bound, ns in bounds.items()),
        ),
    )
