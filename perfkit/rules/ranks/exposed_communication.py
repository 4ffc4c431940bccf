"""Ranks exchange data while nothing computes.

Problem: collectives (all-reduce, all-gather ...) run with no compute beside them, so the device is
"busy" and training stands still.

How it shows: communication that neither compute nor copies hide takes 5% of the step or more. On a CPU
(gloo) many small collectives, each waited for, take 5% of the step or more while the thread that trains
does nothing else.

Causes: gradients reduced after the backward pass and not during it; buckets too large or too small; a
slow link; ranks that arrive late, since a collective lasts until the last rank has joined: in one
rank's trace, waiting for another rank looks the same as a slow link.

Fix: communicate beside the backward pass, less, or less often.

    model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)

    with model.no_sync():                 # accumulate: no exchange in all but the last micro-batch
        loss = model(micro_batch) / n
        loss.backward()

    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)                 # not: for p in parameters: dist.all_reduce(p.grad)

Gain: at most all exposed communication. No low end is known from one rank: it is 0. Of many small
collectives on the host 75 to 125%: one that holds them all pays the latency once, and what a call costs
before it is waited for goes too.

Source: torch-tb-profiler advised from 10% of communication on, hidden or not; only exposed time can be
gained, so it is told from 5% on like every other part. Collectives of the host count as many from 10 per
step on, and as small below 1 MiB on average, the size of the first bucket that DistributedDataParallel
fills: larger ones take the link's time, and few long waits are for another rank. One exchange for all gained
108 to 126% of what was waited for in four programs (two processes on two cores, 8 to 24 layers of 64 or 256,
batches of 128 to 2,048), each beside its corrected twin. Checked on traces of GPUs: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._pattern_cost import op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, busiest_device, device_part, severity_of, whole_of

ID = "exposed-communication"

#: Collectives of the host that are many, and small (see above).
_MANY = 10
_SMALL = 2**20
#: What one collective for all gains, as a share of what is waited for (see above).
_HOST_GAIN = (0.75, 1.25)


def check(measured: Measured) -> Iterator[Finding]:
    """Find communication that nothing hides."""
    whole = whole_of(measured)
    device = busiest_device(measured)
    if whole is None:
        return
    if device is None:
        yield from _on_host(measured, whole)
        return
    cost_ns = device_part(device.exposed_communication_ns, device, whole)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    hidden = percent(device.overlap_ns, device.communication_ns)
    source = f"device {device.device}, the whole window"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Communication that nothing hides takes {percent(cost_ns, whole.wall_ns)} of the {whole.per}; "
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
        cost_ns=cost_ns,
        saving_low_ns=0,
        saving_high_ns=cost_ns,
    )


def _on_host(measured: Measured, whole: Whole) -> Iterator[Finding]:
    patterns = measured.patterns
    if patterns is None:
        return
    for one in patterns.collectives:
        if one.count < _MANY or (one.bytes is not None and one.bytes >= _SMALL * one.count):
            continue
        cost_ns = op_part(one.waited_ns, patterns, whole)
        low_ns, high_ns = (op_part(share * one.waited_ns, patterns, whole) for share in _HOST_GAIN)
        if cost_ns < NEGLIGIBLE * whole.wall_ns:
            continue
        source = f"{patterns.source}, per step"
        size = round(one.bytes / one.count / 2**10, 1) if one.bytes is not None else None
        yield Finding(
            rule=ID,
            severity=severity_of(cost_ns, whole),
            message=(
                f"{one.count:.0f} {one.name} calls per step are waited for one by one, "
                f"{percent(cost_ns, whole.wall_ns)} of the step; one call for all "
                f"gradients would save up to {ms(high_ns)}."
            ),
            advice="Exchange all gradients at once (DistributedDataParallel, or one flat tensor) beside the backward.",
            confidence="medium",
            evidence=(
                Evidence("calls", round(one.count, 1), "", source),
                Evidence("mean size", size, "KiB", source),
                Evidence("waited", round(one.waited_ns / 1e6, 3), "ms", source),
            ),
            cost_ns=cost_ns,
            saving_low_ns=low_ns,
            saving_high_ns=high_ns,
            **where(one.at, measured),
        )
