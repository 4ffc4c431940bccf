"""The step computes: a healthy verdict.

Problem: none. Most of the step is forward, backward and optimizer, or the device spends it in compute
kernels, and nothing that perfkit looks for costs more than 5% of it.

How it shows: computing takes at least half of the step, and no other finding with a price reaches 5%.

Fix: faster training now takes less work or a faster processor, not a better loop: lower precision, a
fused or compiled model, a smaller model, a larger batch where the device is not full, more devices.

    model = torch.compile(model)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Gain: none is promised. What the kernels themselves could gain (precision, fusion, memory traffic) is
not looked at yet, so "nothing to gain" is said of the loop, not of the kernels.

Source: half is a plain majority. 5% is the threshold from which the other rules tell a problem. The
device side was read from traces of GPUs: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.measures.results import Measured
from perfkit.rules.whole import MAJORITY, NEGLIGIBLE, computing, whole_of
from perfkit.rules.wording import ms, percent

ID = "compute-bound"


def check(measured: Measured) -> Iterator[Finding]:
    """Tell a step that computes most of the time; run when no problem with a price was found."""
    whole = whole_of(measured)
    parts = computing(measured, whole) if whole is not None else {}
    total_ns = sum(part.ns for part in parts.values())
    if whole is None or total_ns < MAJORITY * whole.wall_ns:
        return
    names = ", ".join(f"{name} {percent(part.ns, whole.wall_ns)}" for name, part in parts.items())
    yield Finding(
        rule=ID,
        severity="info",
        message=(
            f"Nothing to gain above {percent(NEGLIGIBLE, 1)} in the loop: computing takes "
            f"{percent(total_ns, whole.wall_ns)} of the {ms(whole.wall_ns)} {whole.per} ({names})."
        ),
        advice="The loop is healthy. Next: torch.compile, lower precision (autocast), a larger batch, more devices.",
        confidence="medium",
        evidence=tuple(Evidence(name, round(part.ns / 1e6, 3), "ms", part.source) for name, part in parts.items()),
    )
