"""Ranks exchange data while nothing computes.

Problem: collectives (all-reduce, all-gather ...) run with no compute beside them, so the device is
"busy" and training stands still.

How it shows: communication that neither compute nor copies hide takes 5% of the step or more.

Causes: gradients reduced after the backward pass and not during it; buckets too large or too small; a
slow link; ranks that arrive late, since a collective lasts until the last rank has joined: in one
rank's trace, waiting for another rank looks the same as a slow link.

Fix: communicate beside the backward pass, less, or less often.

    model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)

    with model.no_sync():                 # accumulate: no exchange in all but the last micro-batch
        loss = model(micro_batch) / n
        loss.backward()

Gain: at most all exposed communication. No low end is known from one rank: it is 0.

Source: torch-tb-profiler advised from 10% of communication on, hidden or not; only exposed time can be
gained, so it is told from 5% on like every other part. Checked on traces of GPUs: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.measures.results import Measured
from perfkit.rules.whole import NEGLIGIBLE, busiest_device, device_part, severity_of, whole_of
from perfkit.rules.wording import percent

ID = "exposed-communication"


def check(measured: Measured) -> Iterator[Finding]:
    """Find communication that nothing hides."""
    whole = whole_of(measured)
    device = busiest_device(measured)
    if whole is None or device is None:
        return
    lost_ns = device_part(device.exposed_communication_ns, device, whole)
    if lost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    hidden = percent(device.overlap_ns, device.communication_ns)
    source = f"device {device.device}, the whole window"
    yield Finding(
        rule=ID,
        severity=severity_of(lost_ns, whole),
        message=(
            f"Communication that nothing hides takes {percent(lost_ns, whole.wall_ns)} of the {whole.per}; "
            f"{hidden} of all communication runs beside compute."
        ),
        advice=(
            "Exchange gradients during the backward pass (DDP buckets), or less often (no_sync); "
            "compare the ranks for a late one."
        ),
        confidence="medium",
        evidence=(
            Evidence("communication", round(device.communication_ns / 1e6, 3), "ms", source),
            Evidence("beside compute", round(device.overlap_ns / 1e6, 3), "ms", source),
            Evidence("exposed", round(device.exposed_communication_ns / 1e6, 3), "ms", source),
        ),
        lost_ns=lost_ns,
        gain_low_ns=0,
        gain_high_ns=lost_ns,
    )
