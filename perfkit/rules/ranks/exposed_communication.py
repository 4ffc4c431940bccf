"""Ranks exchange data while nothing computes.

Problem: collectives (all-reduce, all-gather ...) run while nothing computes. The device counts as busy, but training
makes no progress.

How it shows: communication that neither compute nor copies hide takes 5% of the step or more; of collectives, the time
beyond the fastest one of their size is waiting for a rank that comes late, and reported apart. On a CPU (gloo): at
least 10 small collectives per step, each waited for, take 5% of the step or more while the training thread does nothing
else.

Causes: gradients reduced after the backward pass instead of during it; buckets too large or too small; a slow link;
ranks that arrive late, since a collective lasts until the last rank has joined. Where no collective is faster than the
others, waiting for another rank looks the same as a slow link.

Fix: communicate during the backward pass, less, or less often.

    model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)

    with model.no_sync():                 # accumulate: exchange only in the last micro-batch
        loss = model(micro_batch) / n
        loss.backward()

    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)                 # not: for p in parameters: dist.all_reduce(p.grad)

Saving: at most all exposed transfer; the low end is 0, because none is known from one rank. Of the waiting at least
half: with two ranks equal work takes that much off the late one. For many small collectives on the host 75 to 125% of
the time waited: one call for all of them pays the latency once and saves the work before each wait too. For repeated
averages of gradients between the time waited and the time in which one ran: on a CPU they take cores from training.

Source: torch-tb-profiler's advice starts at 10% of communication, hidden or not; only exposed time can be saved, so the
threshold here is 5% of the step. Collectives of the host were measured in four programs on two cores. Checked on traces
of GPUs; not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.device import Communication, DeviceTime
from perfkit.measures.results.patterns import HostCollective, Patterns, RepeatedReductions
from perfkit.measures.results.steps import Ranks
from perfkit.rules._places import busiest_line
from perfkit.run.records import Lines

ID = "exposed-communication"
CLAIMS = (Selector(owner="communication"), Selector(owner="waiting for ranks"))
#: A collective waits for the rank that comes last.
FOLLOWS = ("slow-rank", "imbalanced-data")

#: Collectives of the host are many from this number per step on, and small below this mean size in bytes: the first
#: bucket that DistributedDataParallel fills.
_MANY = 10
_SMALL = 2**20
#: The share of waiting for a late rank that is saved at least (two ranks share the difference in their work).
_SHARED = 0.5
#: What one collective for all saves, as a share of the time waited (measured, see above).
_HOST_SAVING = (0.75, 1.25)
_OVERLAP = "Exchange gradients during the backward (DDP buckets), in larger buckets, or less often (no_sync)."
_EQUAL_RANKS = "Give every rank the same work, counted in tokens and not in samples; larger buckets do not help."
#: By advice. What exchanges more often than needed, or on the host, no trace of a device shows; and the trace of one
#: rank does not show when the others arrive, so that its replay does not know what waits for them.
WHAT_IF = {_OVERLAP: ("exposed-communication", None)}


def check(
    step: StepBudget,
    device: DeviceTime | None = None,
    communication: Communication | None = None,
    patterns: Patterns | None = None,
    repeated: RepeatedReductions | None = None,
    lines: Lines | None = None,
    ranks: Ranks | None = None,
) -> Iterator[Finding]:
    """Find communication that nothing hides, and gradients that are exchanged more often than weights are updated."""
    if device is not None:
        waiting = min(device.exposed_communication_ns, communication.exposed_waiting_ns or 0) if communication else 0
        yield from _transfer(device, device.exposed_communication_ns - waiting, step)
        if communication is not None:
            yield from _waiting(communication, waiting, step)
        return
    if patterns is not None:
        for collective in patterns.collectives:
            yield from _on_host(collective, patterns, step, ranks)
    if repeated is not None:
        yield from _repeated(repeated, step, lines)


def _transfer(device: DeviceTime, exposed_ns: int, step: StepBudget) -> Iterator[Finding]:
    cost = step.of_device(exposed_ns)
    if step.is_negligible(cost):
        return
    hidden = percent(device.overlap_ns, device.communication_ns)
    source = f"device {device.device}, the whole window"
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        message=f"Exposed communication takes {step.percent(cost)} of the {step.per}; {hidden} is hidden.",
        advice=_OVERLAP,
        evidence=(
            Evidence.ms("communication", device.communication_ns, source),
            Evidence.ms("during compute", device.overlap_ns, source),
            Evidence.ms("exposed transfer", exposed_ns, source),
        ),
    )


def _waiting(communication: Communication, waiting_ns: int, step: StepBudget) -> Iterator[Finding]:
    cost = step.of_device(waiting_ns)
    if step.is_negligible(cost):
        return
    longest = max(communication.collectives, key=lambda one: one.waiting_ns or 0)
    source = f"device {communication.device}, the whole window"
    yield step.finding(
        cost=cost,
        saving=(_SHARED * cost, cost),
        message=(
            f"Another rank is late: collectives, most of all {longest.name}, wait for it "
            f"{ms(cost)} of the {ms(step.wall_ns)} {step.per} ({step.percent(cost)}) while nothing computes."
        ),
        advice=_EQUAL_RANKS,
        evidence=(
            Evidence.ms("exposed waiting", waiting_ns, f"{source}, beyond the fastest collective of a size"),
            Evidence.ms("all waiting", sum(one.waiting_ns or 0 for one in communication.collectives), source),
            Evidence.ms("all communication", communication.total_ns, source),
            Evidence.ms("saving by replay", None, "one rank's trace does not show when the others arrive"),
        ),
    )


def _on_host(one: HostCollective, patterns: Patterns, step: StepBudget, ranks: Ranks | None) -> Iterator[Finding]:
    # Where every rank's waits are known, the waiting for the one that comes last is left out: fewer calls save none.
    transferring = 1.0
    if ranks is not None and ranks.blocked_ns and ranks.transfer_ns is not None:
        transferring = ranks.transfer_ns / ranks.blocked_ns
    waited_ns = transferring * one.waited_ns
    cost = step.of_pattern(waited_ns, patterns)
    large = one.bytes is not None and one.bytes >= _SMALL * one.count
    if one.count < _MANY or large or step.is_negligible(cost):
        return
    low, high = (step.of_pattern(share * waited_ns, patterns) for share in _HOST_SAVING)
    source = f"{patterns.source}, per step"
    size = round(one.bytes / one.count / 2**10, 1) if one.bytes is not None else None
    yield step.finding(
        cost=cost,
        saving=(low, high),
        spent=one.at,
        message=(
            f"{one.count:.0f} {one.name} calls per step are waited for one by one, {step.percent(cost)} of the step; "
            f"one call for all gradients would save up to {ms(high)}."
        ),
        advice="Exchange all gradients at once (DistributedDataParallel, or one flat tensor) during the backward.",
        evidence=(
            Evidence("calls", round(one.count, 1), "", source),
            Evidence("mean size", size, "KiB", source),
            Evidence.ms("waited", one.waited_ns, source),
            Evidence.percent("of that for no other rank", transferring, 1, source),
        ),
    )


def _repeated(repeated: RepeatedReductions, step: StepBudget, lines: Lines | None) -> Iterator[Finding]:
    low, cost = (round(step.wall_ns * share) for share in (repeated.waited_share, repeated.running_share))
    if step.is_negligible(cost):
        return
    yield step.finding(
        cost=cost,
        saving=(low, step.maximum_saving(cost)),
        spent=busiest_line(lines, "backward"),
        message=(
            f"Each of the {repeated.backwards} backwards of an update averages the gradients between ranks, and only "
            f"the last one needs to: the others take {step.shown(cost)}."
        ),
        advice="Put all backwards of an update but the last under model.no_sync(), with their forwards.",
        evidence=(
            Evidence("all-reduces", repeated.count, "per step", "window"),
            Evidence.ms("waited for", low, "of those that are repeated"),
            Evidence.ms("running", cost, "of those that are repeated, also next to ops"),
        ),
    )
