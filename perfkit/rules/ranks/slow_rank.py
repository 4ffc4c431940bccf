"""One rank is slower than the others, and they wait for it.

Problem: ranks synchronize in every step, at the latest where gradients are summed. A step takes as long as its slowest
rank, and all the others are idle for the rest.

How it shows: the rank that comes last waits least. Where collectives block the host (gloo, MPI), rows have how long
each rank was blocked in them, also inside the backward: the same rank causes at least 80% of the waiting, in 8 steps or
more, and the mean rank waits 5% of the step or longer. Elsewhere (NCCL's run on a device) it has the most time in
phases in which no rank waits for another (data, forward, callbacks, logging, checkpoints), 1.2 times the mean's; a rank
that is late in its backward is then not seen.

Causes: what explains at least half of its longer time. Garbage collections; a core that something else uses; its data;
more data in a batch (tokens, or elements); validation, logging or checkpoints on one rank; a wait or other code on one
rank; a slower processor. Where the size of the data is not known, more work and a slower processor look the same. No
code is named for time in which the thread may have had no core: it would have run for longer, or been blocked.

Fix: give every rank the same work, measured in what takes time, and let none do more on the side.

    sampler = DistributedSampler(dataset, shuffle=True)      # not: dataset[rank * n : (rank + 1) * n]
    batches = batches_by_tokens(lengths, budget, rank, world_size)   # equal tokens, not equal samples
    if rank == 0: writer.submit(state)                       # logging in the background

Saving: of a cause that only this rank has, at least what the mean rank waits for it, at most what the last of the
others does. Of unequal work what the mean rank waits; on a CPU three quarters of that at the low end, because waiting
ranks leave caches and cores to the others. Where waits are not known: the difference in the rank's own work, and for a
longer forward a part of the backward, which waiting hides: a quarter to three quarters of its estimate on a CPU, half
of it to all on a device.

Source: 80% of at least 8 steps is chance in 7% of the runs of two equal ranks at most, in fewer where the waiting is
worth a report. The threshold is 5% of the step. perfkit/rules/CALIBRATION.md has what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.rules._places import call_in_loop, data_of_a_rank, row_at
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.rules.ranks._late_causes import EQUAL_WORK, UNCERTAIN, LateCause, late_cause
from perfkit.run.records import Lines, Rank

ID = "slow-rank"
CLAIMS = (Selector(owner="waiting for ranks"),)
#: Its GPU may be slowed: that rule checks the GPU of the rank that the others wait for.
FOLLOWS = ("node-slowed",)

#: Where waits are not known, its own work against the mean rank's from which on it is slow: below that rank 0, which
#: perfkit records more of and which often logs, looks slow on any machine (11% was measured on two equal ranks).
_SLOW = 1.2
#: There, the share of the backward's estimated difference that is saved, at the low end and at the high end (chosen).
_BACKWARD = (0.25, 0.75)
_BACKWARD_ON_DEVICE = (0.5, 1.0)
#: The share of the waiting that equal work saves at least on a CPU (chosen).
_EQUAL_WORK = 0.75
#: Ranks whose time is listed as evidence: as many as a person reads.
_LISTED = 4


def check(
    ranks: Ranks,
    rank: Rank | None = None,
    devices: tuple[DeviceTime, ...] = (),
    lines: Lines | None = None,
    loader: LoaderUse | None = None,
) -> Iterator[Finding]:
    """Find the rank that the others wait for, what makes it late, and what a change of that would save."""
    slow = ranks.waited_for
    if slow is None or ranks.wall_ns <= 0:
        return
    source = f"steps.jsonl of {len(ranks.ranks)} ranks, {ranks.steps} steps"
    on_device = bool(devices) or (rank is not None and bool(rank.devices))
    step = StepBudget(wall_ns=ranks.wall_ns, per="step", source=source, on_device=on_device)
    cause = late_cause(ranks, slow)
    if ranks.blocked_ns is not None:
        waiting_ns = round(slow.caused_share * ranks.waiting_ns)
        low, high = _saving(waiting_ns, slow, cause, on_device)
        reported = not step.is_negligible(waiting_ns)
    else:
        low, high = _estimated_saving(ranks, slow, _BACKWARD_ON_DEVICE if on_device else _BACKWARD)
        reported = not step.is_negligible(low) and slow.own_ns >= _SLOW * fmean(one.own_ns for one in ranks.ranks)
    if not reported:
        return
    made_at = loader.change if loader is not None else None
    spent = cause.spent or slow.line
    equal_work = cause.kind in EQUAL_WORK
    others = "the other rank waits" if len(ranks.ranks) == 2 else "the other ranks wait"
    on_host = f" on {slow.host}" if slow.host and len({one.host for one in ranks.ranks}) > 1 else ""
    yield step.finding(
        cost=high,
        saving=(low, high),
        spent=spent,
        change=data_of_a_rank(rank, lines, made_at) if equal_work else call_in_loop(row_at(spent, lines), lines),
        message=f"Rank {slow.rank}{on_host} comes last and {others} for it, {step.shown(high)}: {cause.reason}.",
        advice=cause.advice,
        confidence="high" if slow.caused_share > 0.95 and cause.kind not in UNCERTAIN else "medium",
        evidence=tuple(_evidence(ranks, slow, cause, source)),
    )


def _saving(waiting_ns: int, slow: RankSummary, cause: LateCause, on_device: bool) -> tuple[int, int]:
    """What a change saves where the ranks' waits are known."""
    shared = waiting_ns if on_device else round(_EQUAL_WORK * waiting_ns)
    if cause.kind == "work":
        return shared, waiting_ns
    return shared if cause.kind in EQUAL_WORK else waiting_ns, max(waiting_ns, slow.late_ns)


def _estimated_saving(ranks: Ranks, slow: RankSummary, of_backward: tuple[float, float]) -> tuple[int, int]:
    """What equal work saves where waits are not known: in the phases of a rank's own, and a part of its backward."""
    own_ns = slow.own_ns - fmean(one.own_ns for one in ranks.ranks)
    forward_ns = slow.phases_ns.forward or 0
    more_forward_ns = max(0.0, forward_ns - fmean(one.phases_ns.forward or 0 for one in ranks.ranks))
    ratio = (slow.phases_ns.backward or 0) / forward_ns if forward_ns else 0.0
    low, high = (min(ranks.wall_ns, own_ns + share * ratio * more_forward_ns) for share in of_backward)
    return round(low), round(high)


def _evidence(ranks: Ranks, slow: RankSummary, cause: LateCause, source: str) -> Iterator[Evidence]:
    yield Evidence("comes last, and is waited for", slow.late_steps, f"of {ranks.steps} steps", source)
    yield Evidence.percent("of the waiting", slow.caused_share, 1, source)
    yield Evidence.ms(f"{cause.kind} beyond the others", cause.ns, source)
    listed = [slow, *(one for one in sorted(ranks.ranks, key=lambda one: -one.own_ns) if one is not slow)][:_LISTED]
    for one in listed:
        yield Evidence.ms(f"own work of rank {one.rank}", one.own_ns, source)
    for one in listed:
        if one.waited_ns is not None:
            yield Evidence.ms(f"rank {one.rank} in collectives", one.waited_ns, source)
    for one in listed:
        if one.size_per_step is not None:
            yield Evidence(f"data of rank {one.rank}", round(one.size_per_step, 1), "per step", source)
