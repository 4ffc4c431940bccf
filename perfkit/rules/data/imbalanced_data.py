"""Batches have unequal lengths: padding is computed, or ranks wait in turn for the longest batch.

Problem: a batch is as long as its longest sample; everything shorter is padded, and the padding is computed too. With
several ranks, a step is as long as the longest batch of any rank.

How it shows: the time of a step follows the size of its batch, and the rows of inspected batches end in long runs of
the same number; or the rank with the most data in a step is the one the others wait for, in turn.

Causes: batches drawn at random from samples of very different lengths; padding to a fixed maximum; a sampler that
distributes samples and not tokens.

Fix: batches of similar lengths, or no padding at all.

    order = sorted(range(len(data)), key=lambda i: len(data[i]))
    batches = [order[i : i + 16] for i in range(0, len(order), 16)]
    loader = DataLoader(data, batch_sampler=RandomPermutation(batches), collate_fn=collate)

    torch.nested.nested_tensor(samples, layout=torch.jagged)      # or flash attention's varlen

Saving: the padded elements of a step times the cost of an element (the median slope of step time over batch size,
without the wait for data). At most all of it, and on a CPU 15% more; at least 70%, because sorted batches still have
some padding. Between ranks: at most the longest minus the mean of their own work, step by step; at least half of it.

Source: padding is reported from 20% on, since sorted batches have less; time follows size from a rank correlation of
0.5 on, between ranks from 0.7 on, which noise alone does not reach in 12 steps. Batches, or the inputs of models where
no DataLoader returns any, are inspected where they are whole numbers on the CPU, (samples, length), at most 40 of a
run: other data shows no padding. 70% and a half were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MeanStepBudget, StepBudget
from perfkit.measures.results.steps import BatchTime, Ranks
from perfkit.rules._places import busiest_line, data_of_a_rank
from perfkit.rules._settings import first_call
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.run.records import Lines, Rank

ID = "imbalanced-data"
CLAIMS = ()

#: Functions of transformers that write texts.
_WRITES = frozenset(("GenerationMixin.generate", "GenerationMixin._sample"))
#: The share of padding from which on it is reported.
_PADDED = 0.2
#: The rank correlation of time and size from which on time follows size: in one process, and between ranks.
_FOLLOWS = 0.5
_RANKS_FOLLOW = 0.7
#: The share of the padding's cost that is saved at least: chosen.
_MINIMUM = 0.7
#: A rank that causes this share of the waiting is reported by slow-rank.
_IN_TURN = 0.8


def check(
    batches: BatchTime | None = None,
    step: MeanStepBudget | None = None,
    ranks: Ranks | None = None,
    lines: Lines | None = None,
    rank: Rank | None = None,
    loader: LoaderUse | None = None,
) -> Iterator[Finding]:
    """Find padding that is computed, and ranks that wait in turn for the longest batch."""
    if batches is not None and step is not None:
        change = loader.change if loader is not None else None
        # The padding is computed where the model is, whoever added it.
        by = step.counted_by
        called_at = by.called_at if by is not None and by.module is not None else None
        spent = called_at or busiest_line(lines, "forward") or _collating_line(lines, rank)
        yield from _padding(batches, step, spent, change, lines)
    if ranks is not None:
        change = data_of_a_rank(rank, lines, loader.change if loader is not None else None)
        # Ranks wait where gradients are averaged.
        yield from _in_turn(ranks, busiest_line(lines, "backward") or ranks.ranks[0].line, change)


def _padding(
    batches: BatchTime, step: StepBudget, spent: Location | None, change: Location | None, lines: Lines | None
) -> Iterator[Finding]:
    # Lengths make single steps long: sorting changes the mean of all steps.
    padded = batches.padded_share
    if padded is None or padded < _PADDED or batches.follows < _FOLLOWS or batches.ns_per_element <= 0:
        return
    computing = step.wall_ns - (step.mean.phases_ns.data or 0 if step.mean is not None else 0)
    typical_ns = step.typical.wall_ns if step.typical is not None else step.wall_ns
    cost = round(min(padded * batches.elements_per_step * batches.ns_per_element, padded * computing, typical_ns))
    if step.is_negligible(cost):
        return
    steps = f"{batches.steps} steps"
    yield step.finding(
        # How long a text that the model writes itself becomes is known once it is written.
        severity="info" if _writes_texts(lines) else None,
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=spent,
        change=change,
        message=(
            f"{percent(padded, 1)} of a batch is padding, and step time follows batch size: computing the padding "
            f"takes {ms(cost)} of the {ms(step.wall_ns)} step."
        ),
        advice="Batch samples of similar lengths (batch_sampler), or use no padding (nested tensors, varlen).",
        evidence=(
            Evidence.percent("padding", padded, 1, f"{batches.batches_inspected} batches"),
            Evidence("elements of a batch", round(batches.elements_per_step), "", steps),
            Evidence("time of an element", round(batches.ns_per_element), "ns", f"median slope, {steps}"),
            Evidence("time follows size", round(batches.follows, 2), "", "rank correlation"),
        ),
    )


def _writes_texts(lines: Lines | None) -> bool:
    """Whether transformers generates texts in the loop, as where a model is trained on what it wrote."""
    frames = lines.paths.frames if lines is not None and lines.paths is not None else ()
    return any(frame.file == "transformers" and frame.function in _WRITES for frame in frames)


def _in_turn(ranks: Ranks, spent: Location | None, change: Location | None) -> Iterator[Finding]:
    source = f"steps.jsonl of {len(ranks.ranks)} ranks, {ranks.steps} steps"
    step = StepBudget(wall_ns=ranks.wall_ns, per="step", source=source)
    follows, waiting = ranks.follows_size, ranks.waiting_ns
    if follows is None or follows < _RANKS_FOLLOW or step.is_negligible(waiting):
        return
    if max(rank.caused_share for rank in ranks.ranks) >= _IN_TURN:
        return
    yield step.finding(
        cost=waiting,
        saving=(waiting // 2, waiting),
        spent=spent,
        change=change,
        message=(
            f"In each step the ranks wait for the one with the most data, in turn: {ms(waiting)} of the "
            f"{ms(step.wall_ns)} step."
        ),
        advice="Distribute batches by their cost (tokens, frames), so that all ranks have the same amount in a step.",
        evidence=(
            Evidence.ms("longest rank beyond the mean", waiting, source),
            Evidence("time follows the amount of data", round(follows, 2), "", "correlation"),
        ),
    )


def _collating_line(lines: Lines | None, rank: Rank | None) -> Location | None:
    """Where batches are collated: the longest line of the fetch, else the line that creates the loader."""
    traced = lines.traced if lines is not None else ()
    fetching = [line for line in traced if line.phase == "data" and line.owner == "user"]
    if fetching:
        return max(fetching, key=lambda line: line.host_ns)
    return first_call(rank, "collate_fn", "DataLoader") if rank is not None else None
