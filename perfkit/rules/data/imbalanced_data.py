"""Batches are of unequal length: padding is computed, or ranks wait in turn for the longest.

Problem: a batch is as long as its longest sample, and everything that is shorter is filled up and computed along.
Between ranks, a step is as long as the longest batch of any of them.

How it shows: the time of a step follows the size of its batch, and batches that were looked into end in long runs
of the same number; or the rank with more data in a step is the one the others wait for, in turn.

Causes: batches drawn at random from samples of very different length; padding to a fixed maximum; a sampler that
deals out samples and not tokens.

Fix: batches of like length, or no padding at all.

    order = sorted(range(len(data)), key=lambda i: len(data[i]))
    batches = [order[i : i + 16] for i in range(0, len(order), 16)]
    loader = DataLoader(data, batch_sampler=RandomPermutation(batches), collate_fn=collate)

    torch.nested.nested_tensor(samples, layout=torch.jagged)      # or flash attention's varlen

Gain: the padded elements of a step times what an element costs (the median slope of step time over batch
size, without the wait for data). High end: all padding gone, and on a CPU 15% more, since the rest then
finds its caches as it left them. Low end: 70% of it, since sorted batches still hold some. Between ranks:
the longest minus the mean of their own work, by step; half of it at the low end.

Source: padding counts from 20% on, since less is what sorted batches have; time follows size from a rank
correlation of 0.5 on, between ranks from 0.7, where noise alone does not reach in 12 steps. A batch is
looked into where it is one of whole numbers on the CPU, (samples, length), at most 40 of a run: other data
shows no padding.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import first_call
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, severity_of, whole_of, with_beyond

ID = "imbalanced-data"

#: See above.
_PADDED = 0.2
_FOLLOWS = 0.5
_RANKS_FOLLOW = 0.7
_GOES = 0.7
#: A rank that is the slowest this often is slow-rank's.
_IN_TURN = 0.8


def check(measured: Measured) -> Iterator[Finding]:
    """Find padding that is computed, and ranks that wait in turn for the longest batch."""
    yield from _padding(measured)
    yield from _in_turn(measured)


def _padding(measured: Measured) -> Iterator[Finding]:
    batches, whole = measured.batches, whole_of(measured)
    if measured.every_step is not None and whole is not None:
        # Lengths make single steps long: the mean of all steps is what sorting changes.
        whole = Whole(measured.every_step.wall_ns, "step", measured.every_step.source)
    if batches is None or whole is None or batches.padded_share is None:
        return
    if batches.padded_share < _PADDED or batches.follows < _FOLLOWS or batches.ns_per_element <= 0:
        return
    ns = batches.padded_share * batches.elements_per_step * batches.ns_per_element
    computing = whole.wall_ns - (measured.every_step.phases_ns.data or 0 if measured.every_step is not None else 0)
    most_ns = measured.step.wall_ns if measured.step is not None else whole.wall_ns
    cost_ns = round(min(ns, batches.padded_share * computing, most_ns))
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    line = _where_batches_are_made(measured)
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"{percent(batches.padded_share, 1)} of a batch is padding, and step time follows batch size: "
            f"computing it takes {ms(cost_ns)} of the {ms(whole.wall_ns)} step."
        ),
        advice="Put samples of like length into one batch (batch_sampler), or use no padding (nested tensors, varlen).",
        confidence="medium",
        evidence=(
            Evidence("padding", round(100 * batches.padded_share, 1), "%", f"{batches.batches_looked_at} batches"),
            Evidence("elements of a batch", round(batches.elements_per_step), "", f"{batches.steps} steps"),
            Evidence("time of an element", round(batches.ns_per_element), "ns", f"median slope, {batches.steps} steps"),
            Evidence("time follows size", round(batches.follows, 2), "", "rank correlation"),
        ),
        file=line.file if line else None,
        line=line.line if line else None,
        function=line.function if line else None,
        cost_ns=cost_ns,
        saving_low_ns=round(_GOES * cost_ns),
        saving_high_ns=with_beyond(cost_ns, measured, whole),
    )


def _in_turn(measured: Measured) -> Iterator[Finding]:
    ranks = measured.ranks
    if ranks is None or ranks.follows_size is None or ranks.follows_size < _RANKS_FOLLOW:
        return
    if max(rank.slowest_share for rank in ranks.ranks) >= _IN_TURN or ranks.waiting_ns < NEGLIGIBLE * ranks.wall_ns:
        return
    whole = Whole(ranks.wall_ns, "step", f"steps.jsonl of {len(ranks.ranks)} ranks, {ranks.steps} steps")
    line = ranks.ranks[0].line
    yield Finding(
        rule=ID,
        severity=severity_of(ranks.waiting_ns, whole),
        message=(
            f"In each step the ranks wait for the one with the most data, in turn: "
            f"{ms(ranks.waiting_ns)} of the {ms(whole.wall_ns)} step."
        ),
        advice="Deal out batches by what they cost (tokens, frames), so that all ranks have as much in the same step.",
        confidence="medium",
        evidence=(
            Evidence("longest rank beyond the mean", round(ranks.waiting_ns / 1e6, 3), "ms", whole.source),
            Evidence("time follows the amount of data", round(ranks.follows_size, 2), "", "correlation"),
        ),
        file=line.file if line else None,
        line=line.line if line else None,
        function=line.function if line else None,
        cost_ns=ranks.waiting_ns,
        saving_low_ns=ranks.waiting_ns // 2,
        saving_high_ns=ranks.waiting_ns,
    )


def _where_batches_are_made(measured: Measured) -> Location | None:
    """Where batches are put together: the longest line of the fetch, else the line that makes the loader."""
    traced = measured.lines.traced if measured.lines is not None else ()
    fetching = [line for line in traced if line.phase == "data" and line.owner == "user"]
    if fetching:
        longest = max(fetching, key=lambda line: line.host_ns)
        return Location(file=longest.file, line=longest.line, function=longest.function)
    return first_call(measured.rank, "collate_fn", "DataLoader") if measured.rank is not None else None
