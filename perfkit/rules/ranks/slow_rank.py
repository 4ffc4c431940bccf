"""One rank is slower than the others, and they wait for it.

Problem: ranks synchronize in every step, at the latest where gradients are summed. A step takes as long as its slowest
rank, and all the others are idle for the rest.

How it shows: the same rank has the most work of its own (data, forward, callbacks, logging, checkpoints: phases in
which it waits for no other rank) in at least 80% of the steps, and equal work would save 5% of the step or more.

Causes: more or longer data on one rank (padding, a sampler without shuffling, shards of unequal size); logging,
validation or checkpoints on rank 0 alone; a slower or busier machine; a device that throttles.

Fix: give every rank the same work, measured in what takes time.

    sampler = DistributedSampler(dataset, shuffle=True)      # not: dataset[rank * n : (rank + 1) * n]
    batches = batches_by_tokens(lengths, budget, rank, world_size)   # equal tokens, not equal samples
    if rank == 0: writer.submit(state)                       # logging in the background

Saving: every rank takes the mean of the ranks. The difference in the slow rank's own work is certain. If that is the
forward, its backward differs too, but waiting hides it; it is estimated by the ratio of the slow rank's own backward to
its forward: half of that at the low end and all at the high end; where ranks compute on a CPU a quarter and three
quarters, because waiting ranks leave caches and cores to the others (all four shares are chosen).

Not reported: a rank that computes on a CPU and uses less than 10% more processor time than the mean rank. Other
programs slow its machine, and this run cannot change that.

Source: 80% of at least 8 steps cannot be chance (with two ranks below 2%). The threshold is 5% of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.rules._places import data_of_a_rank
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.run.records import PHASES, Lines, Rank

ID = "slow-rank"
CLAIMS = (Selector(owner="waiting for ranks"),)
#: Its GPU may be slowed: that rule checks the GPU of the rank that the others wait for.
FOLLOWS = ("node-slowed",)

#: Its own work against the mean rank's, from which on it is slow: below that rank 0, which perfkit records more of and
#: which often logs, looks slow on any machine (11% was measured on two ranks of equal work).
_SLOW = 1.2
#: The processor time of the slow rank against the mean's, from which on it has more work (chosen).
_MORE_WORK = 1.1
#: The share of the backward's estimated difference that is saved, at the low end and at the high end (chosen).
_BACKWARD = (0.25, 0.75)
_BACKWARD_ON_DEVICE = (0.5, 1.0)
#: More data than the mean from this factor on is named as the cause (chosen).
_MORE_DATA = 1.05


def check(
    ranks: Ranks,
    rank: Rank | None = None,
    devices: tuple[DeviceTime, ...] = (),
    lines: Lines | None = None,
    loader: LoaderUse | None = None,
) -> Iterator[Finding]:
    """Find the rank that the others wait for, the phase in which it does more, and what equal work would save."""
    slow = ranks.waited_for
    if slow is None or ranks.wall_ns <= 0:
        return
    source = f"steps.jsonl of {len(ranks.ranks)} ranks, {ranks.steps} steps"
    on_device = bool(devices) or (rank is not None and bool(rank.devices))
    step = StepBudget(wall_ns=ranks.wall_ns, per="step", source=source, on_device=on_device)
    low, high = _saving(ranks, slow, _BACKWARD_ON_DEVICE if on_device else _BACKWARD)
    if step.is_negligible(low) or slow.own_ns < _SLOW * fmean(one.own_ns for one in ranks.ranks):
        return
    cpu_ns = [one.cpu_ns for one in ranks.ranks if one.cpu_ns is not None]
    all_known = len(cpu_ns) == len(ranks.ranks)
    if not on_device and all_known and (slow.cpu_ns or 0) < _MORE_WORK * fmean(cpu_ns):
        return
    phase, beyond_ns = _slowest_phase(ranks, slow)
    most = sorted(ranks.ranks, key=lambda one: -one.own_ns)[:4]
    evidence = [Evidence.ms(f"own work of rank {one.rank}", one.own_ns, source) for one in most]
    evidence.append(Evidence("slowest in", round(100 * slow.slowest_share, 1), "% of the steps", source))
    sizes = [one.size_per_step for one in ranks.ranks if one.size_per_step is not None]
    more = ""
    if len(sizes) == len(ranks.ranks) and slow.size_per_step and slow.size_per_step > _MORE_DATA * fmean(sizes):
        more = f", with {slow.size_per_step / fmean(sizes):.1f} times the mean amount of data"
        evidence += [
            Evidence(f"data of rank {one.rank}", one.size_per_step, "elements per step", source)
            for one in ranks.ranks[:4]
        ]
    # Logging, validation and checkpoints of one rank are changed where they are; its forward follows its data.
    made_at = loader.change if loader is not None else None
    yield step.finding(
        cost=high,
        saving=(low, high),
        spent=slow.line,
        change=data_of_a_rank(rank, lines, made_at) if phase == "forward" else None,
        message=(
            f"All ranks wait for rank {slow.rank}: its {phase} takes {ms(beyond_ns)} longer than the mean rank's"
            f"{more} (step: {ms(step.wall_ns)})."
        ),
        advice="Give every rank the same work, counted in tokens or frames and not in samples, and no extra work.",
        confidence="high" if slow.slowest_share > 0.95 else "medium",
        evidence=tuple(evidence),
    )


def _saving(ranks: Ranks, slow: RankSummary, of_backward: tuple[float, float]) -> tuple[int, int]:
    own_ns = slow.own_ns - fmean(one.own_ns for one in ranks.ranks)
    forward_ns = slow.phases_ns.forward or 0
    more_forward_ns = max(0.0, forward_ns - fmean(one.phases_ns.forward or 0 for one in ranks.ranks))
    ratio = (slow.phases_ns.backward or 0) / forward_ns if forward_ns else 0.0
    low, high = (min(ranks.wall_ns, own_ns + share * ratio * more_forward_ns) for share in of_backward)
    return round(low), round(high)


def _slowest_phase(ranks: Ranks, slow: RankSummary) -> tuple[str, int]:
    """The phase of its own in which the rank takes most beyond the mean, and by how much."""
    beyond = {
        name: (getattr(slow.phases_ns, name) or 0)
        - round(fmean(getattr(one.phases_ns, name) or 0 for one in ranks.ranks))
        for name in PHASES
        if name not in ("backward", "optimizer", "other")
    }
    name = max(beyond, key=lambda key: beyond[key])
    return name, beyond[name]
