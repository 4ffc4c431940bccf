"""Python's garbage collector stops the training.

Problem: a full collection visits every object of the process that can refer to others: a million of them take 0.1 to
0.5 s. Everything waits meanwhile, also the other ranks.

How it shows: collections take 5% of the mean step or more, steps with one included.

Causes: gc.collect() in the loop, "to be safe" (reference counting frees tensors without it); millions of long-lived
Python objects that refer to each other (a replay buffer of objects, a dataset as a list of dicts), all of which each
automatic collection visits.

Fix: let the collector run by itself, or exclude long-lived objects from it.

    dataset = Dataset(...)
    gc.collect(); gc.freeze()          # once, before the loop: existing objects are not visited again

    states = torch.empty(n, d)         # one tensor instead of n objects

    gc.disable(); ...; if step % 500 == 0: gc.collect()    # many ranks: in the same step on all of them

Saving: at most all of it, and on a CPU 15% more, because the rest of the step then finds its caches as it left them. At
least 85% of the full collections: those visit long-lived objects.

Source: the collector's callbacks, which report start and end. The threshold is 5% of the mean step. One or two full
collections in a whole run do not count: Python starts them where the program's objects have grown by a quarter.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, shown_function
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import MeanStepBudget
from perfkit.measures.results.steps import MeanStep
from perfkit.run.records import Lines, Rank

ID = "gc-pauses"
CLAIMS = (Selector(owner="collection"),)
#: Dynamo makes the objects that are collected.
FOLLOWS = ("recompiles",)

#: The share of the full collections' time that is saved at least: their mean over the whole run differs from that of
#: the timed steps by about as much as two runs do.
_FULL = 0.85
#: Full collections in a run from which on they recur (chosen).
_RECUR = 3


def check(
    step: MeanStepBudget, mean: MeanStep, lines: Lines | None = None, rank: Rank | None = None
) -> Iterator[Finding]:
    """Find the time of collections, and the line in which most of them began."""
    cost = min(step.wall_ns, mean.gc_ns or 0)
    collected = lines.collected if lines is not None else ()
    full_ns = sum(row.total_ns for row in collected)
    steps = rank.steps if rank is not None else None
    if 0 < sum(row.count for row in collected) < _RECUR:
        cost = max(0, cost - round(full_ns / max(1, mean.steps)))
        collected, full_ns = (), 0
    if step.is_negligible(cost):
        return
    most = max((row for row in collected if row.owner == "user"), key=lambda row: row.total_ns, default=None)
    evidence = [Evidence.ms("garbage collections", cost, step.source)]
    full = ""
    if most is not None:
        each = ms(most.total_ns / most.count)
        evidence.append(Evidence("full collections that began there", most.count, "", f"{each} each"))
        where = shown_function(most)
        several = most.count > 1
        full = (
            f"; the {most.count} full ones in {where} take {each} each"
            if several
            else f"; a full one in {where} takes {each}"
        )
    low = min(cost, _FULL * full_ns / steps) if steps and full_ns else cost // 2
    yield step.finding(
        cost=cost,
        saving=(low, step.maximum_saving(cost)),
        spent=most,
        message=f"Garbage collections take {step.shown(cost)}{full}.",
        advice=(
            "Remove gc.collect() from the loop; keep long-lived data in tensors or arrays, or call gc.freeze() after "
            "creating it."
        ),
        confidence="high",
        evidence=tuple(evidence),
    )
