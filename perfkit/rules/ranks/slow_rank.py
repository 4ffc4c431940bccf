"""One rank is slower than the others, and they wait for it.

Problem: ranks meet in every step, at the latest where gradients are summed. A step takes as long as its slowest
rank, and all the others stand still for the rest.

How it shows: the same rank has the most work of its own (data, forward, callbacks, logging, checkpoints: phases
in which it waits for no other rank) in at least 80% of the steps, and the others wait 5% of the step or more for
it.

Causes: more or longer data on one rank (padding, a sampler without shuffling, shards of unequal size); logging,
validation or checkpoints on rank 0 alone; a slower or busier machine; a device that throttles.

Fix: give every rank the same work, measured in what costs time.

    sampler = DistributedSampler(dataset, shuffle=True)      # not: dataset[rank * n : (rank + 1) * n]
    batches = batches_by_tokens(lengths, budget, rank, world_size)   # equal tokens, not equal samples
    if rank == 0: writer.submit(state)                       # logging beside the step

Gain: the mean of the ranks instead of the largest. What is certain is the difference in a rank's own work.
Where that is the forward, its backward differs alike, which cannot be seen (there the others wait): it is
taken to differ as the slow rank's own backward stands to its forward: by half of that at the low end and
all of it at the high end; where ranks compute on a CPU by a quarter and three quarters, because ranks that
wait no longer take caches and cores from each other.

A rank that computes on a CPU and is slow without using more processor time than the mean rank (10%) shares its
machine with something else: that is no finding of this run, and not told.

Source: 80% of at least 8 steps cannot be chance (with two ranks less than 2%). 5% as for the other rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, on_device, severity_of
from perfkit.run.records import PHASES

ID = "slow-rank"

#: Its own work against the mean rank's, from which on it is slow: below that rank 0, which perfkit records more of and
#: which often logs, looks slow on any machine (11% was seen on two ranks of equal work).
_FAR = 1.2
#: The processor time of the slow rank against the mean's, from which on it does more (see above).
_MORE = 1.1
#: What of the backward's difference goes, at the low end and at the high end (see above).
_BACKWARD = (0.25, 0.75)
_BACKWARD_ON_DEVICE = (0.5, 1.0)


def check(measured: Measured) -> Iterator[Finding]:
    """Find the rank that the others wait for, the phase in which it does more, and what equal work would gain."""
    ranks = measured.ranks
    if ranks is None or ranks.wall_ns <= 0:
        return
    slow = ranks.waited_for
    if slow is None:
        return
    whole = Whole(ranks.wall_ns, "step", f"steps.jsonl of {len(ranks.ranks)} ranks, {ranks.steps} steps")
    low_ns, high_ns = _gain(ranks, slow, _BACKWARD_ON_DEVICE if on_device(measured) else _BACKWARD)
    mean_ns = sum(rank.own_ns for rank in ranks.ranks) / len(ranks.ranks)
    if low_ns < NEGLIGIBLE * whole.wall_ns or slow.own_ns < _FAR * mean_ns:
        return
    if not on_device(measured) and not _does_more(ranks, slow):
        return
    phase, beyond_ns = _phase(ranks, slow)
    evidence = [
        Evidence(f"own work of rank {rank.rank}", round(rank.own_ns / 1e6, 3), "ms", whole.source)
        for rank in sorted(ranks.ranks, key=lambda rank: -rank.own_ns)[:4]
    ]
    evidence.append(Evidence("slowest in", round(100 * slow.slowest_share, 1), "% of the steps", whole.source))
    sizes = [rank.size_per_step for rank in ranks.ranks if rank.size_per_step is not None]
    more = ""
    if len(sizes) == len(ranks.ranks) and slow.size_per_step and slow.size_per_step > 1.05 * sum(sizes) / len(sizes):
        more = f", with {slow.size_per_step * len(sizes) / sum(sizes):.1f} times the mean amount of data"
        evidence += [
            Evidence(f"data of rank {rank.rank}", rank.size_per_step, "elements per step", whole.source)
            for rank in ranks.ranks[:4]
        ]
    line = slow.line
    yield Finding(
        rule=ID,
        severity=severity_of(high_ns, whole),
        message=(
            f"All ranks wait for rank {slow.rank}: its {phase} takes {ms(beyond_ns)} longer than the mean rank's"
            f"{more} (step: {ms(whole.wall_ns)})."
        ),
        advice="Give every rank the same work, counted in tokens or frames and not in samples, and none of it extra.",
        confidence="high" if slow.slowest_share > 0.95 else "medium",
        evidence=tuple(evidence),
        file=line.file if line else None,
        line=line.line if line else None,
        function=line.function if line else None,
        cost_ns=high_ns,
        saving_low_ns=low_ns,
        saving_high_ns=high_ns,
    )


def _does_more(ranks: Ranks, slow: RankSummary) -> bool:
    """Whether the slow rank also uses more of a processor than the others: if not, its machine is busy with others."""
    known = [rank.cpu_ns for rank in ranks.ranks if rank.cpu_ns is not None]
    if len(known) < len(ranks.ranks) or slow.cpu_ns is None:
        return True
    return slow.cpu_ns >= _MORE * sum(known) / len(known)


def _gain(ranks: Ranks, slow: RankSummary, of_backward: tuple[float, float]) -> tuple[int, int]:
    count = len(ranks.ranks)
    own_ns = slow.own_ns - sum(rank.own_ns for rank in ranks.ranks) / count
    forward = [rank.phases_ns.forward or 0 for rank in ranks.ranks]
    more_forward_ns = max(0.0, (slow.phases_ns.forward or 0) - sum(forward) / count)
    ratio = (slow.phases_ns.backward or 0) / slow.phases_ns.forward if slow.phases_ns.forward else 0.0
    low, high = (min(ranks.wall_ns, own_ns + share * ratio * more_forward_ns) for share in of_backward)
    return round(low), round(high)


def _phase(ranks: Ranks, slow: RankSummary) -> tuple[str, int]:
    """The phase of its own in which the rank takes most beyond the mean, and by how much."""
    beyond = {}
    for name in PHASES:
        if name in ("backward", "optimizer", "other"):
            continue
        of = [getattr(rank.phases_ns, name) or 0 for rank in ranks.ranks]
        beyond[name] = (getattr(slow.phases_ns, name) or 0) - round(sum(of) / len(of))
    name = max(beyond, key=lambda key: beyond[key])
    return name, beyond[name]
