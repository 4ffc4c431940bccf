"""Which of several ranks belong together: those of one launch, with steps in common, one of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class RankFacts(NamedTuple):
    """What is compared of a rank; ``first_step`` is None where no step is known."""

    rank: int
    source: str
    launch: str
    world_size: int | None
    first_step: int | None
    last_step: int | None


def of_one_run(ranks: Sequence[RankFacts]) -> tuple[list[int], list[str]]:
    """The positions of those that belong to most others, and a sentence for each reason why others do not."""
    kept, notes = [*range(len(ranks))], []
    kept, note = _of_most(ranks, kept, lambda one: one.launch or None, "of another launch than most")
    notes += note
    kept, note = _of_most(ranks, kept, lambda one: one.world_size, "of a job with another number of ranks than most")
    notes += note
    known: dict[int, int] = {}
    again = [at for at in kept if known.setdefault(ranks[at].rank, at) != at]
    notes += _left_out(ranks, again, "recorded as a rank that is there already")
    kept = [at for at in kept if at not in again]
    apart = _without_common_steps(ranks, kept)
    if apart:
        first, last = ranks[apart[0]].first_step, ranks[apart[0]].last_step
        notes += _left_out(ranks, apart, f"without a step that most others have (it has {first} to {last})")
    return [at for at in kept if at not in apart], notes


def _of_most(
    ranks: Sequence[RankFacts], kept: list[int], of: Callable[[RankFacts], Any], what: str
) -> tuple[list[int], list[str]]:
    counts = Counter(of(ranks[at]) for at in kept if of(ranks[at]) is not None)
    if len(counts) < 2:
        return kept, []
    most = counts.most_common(1)[0][0]
    others = [at for at in kept if of(ranks[at]) not in (None, most)]
    return [at for at in kept if at not in others], _left_out(ranks, others, what)


def _without_common_steps(ranks: Sequence[RankFacts], kept: list[int]) -> list[int]:
    """Those whose steps do not reach the stretch of steps that most of them have."""
    spans = {
        at: (first, last)
        for at in kept
        if (first := ranks[at].first_step) is not None and (last := ranks[at].last_step) is not None
    }
    if not spans:
        return []
    # The number of ranks that have a step only rises where one begins.
    begins = sorted({first for first, _ in spans.values()})
    place = max(begins, key=lambda step: sum(first <= step <= last for first, last in spans.values()))
    together = [span for span in spans.values() if span[0] <= place <= span[1]]
    low, high = max(first for first, _ in together), min(last for _, last in together)
    if len(together) < 2:
        return []
    return [at for at, (first, last) in spans.items() if last < low or first > high]


def _left_out(ranks: Sequence[RankFacts], positions: Sequence[int], what: str) -> list[str]:
    if not positions:
        return []
    one = ranks[positions[0]]
    if len(positions) == 1:
        return [f"rank {one.rank} ({one.source}) was left out: it is {what}"]
    return [f"{len(positions)} ranks were left out, {one.rank} ({one.source}) for one: it is {what}"]
