"""A buffer is copied as a whole, to add a few elements to it.

Problem: `torch.cat` makes a new tensor. A replay memory, a queue of keys or a history that is joined anew for each
addition is read and written as a whole each time, in memory that the system has to hand out again.

How it shows: a `cat` gets what an earlier one has returned (or a part of it), which is nine tenths of its own result or
more. These calls take 5% of the step or more.

Causes: `memory = torch.cat([memory[1:], row])`; `queue = torch.cat([keys, queue])[:size]`; a list of results that is
kept as one tensor.

Fix: make the buffer once, and write into it.

    with torch.no_grad():                            # after the backward: the oldest rows are written over
        memory[step % size] = row                    # oldest first, where the order counts: memory.roll(-(step + 1), 0)
        queue[(first + torch.arange(len(keys))) % size] = keys

    rows.append(row)                                 # what only grows: joined once, when all are there

The cache of keys and values of transformers joins them anew for each token. One of a fixed size writes into them:

    model(ids, past_key_values=StaticCache(config=model.config, max_cache_len=length), use_cache=True)
    model.generate(..., cache_implementation="static")

Saving: 70% (chosen) to 115% of the time of these calls: the rest of the step then finds its caches as it left them. For
a cache of transformers it is information, from nothing (one of three models became slower) to 80%: attention is over
all of its places then. Copies of other libraries are not reported.

Source: the ops of two steps. Nine tenths and 50,000 elements were chosen; the 80% were measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent, times
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import StepWork
from perfkit.run.records import Lines

ID = "rebuilt-buffer"
CLAIMS = COMPUTING
#: What grows without end is the cause of the copies' length.
FOLLOWS_AT_LINE = ("growing-step",)

#: The share of the cost that is saved at least (chosen).
_MINIMUM = 0.7
#: The largest share of the copies of transformers' cache that one of a fixed size saved, of three models; the smallest
#: was none (CALIBRATION.md).
_STATIC_CACHE = 0.8

_WRITE_INTO = (
    "Make the buffer once, and write new rows over the oldest ones after the backward, under torch.no_grad(): "
    "buffer[(place + torch.arange(len(new))) % size] = new. A history belongs in a list."
)
_FIXED_SIZE = (
    "Try a cache of a fixed size, which is written into: past_key_values=StaticCache(config=model.config, "
    "max_cache_len=length), or generate(cache_implementation='static')."
)


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find buffers that are joined anew, and what that takes."""
    for one in lines.rebuilt_buffers:
        if one.library not in (None, "transformers"):
            continue  # nobody edits it
        rows = [
            row
            for row in work.rows
            if row.op == "aten::cat" and row.at is not None and (row.at.file, row.at.line) == (one.file, one.line)
        ]
        spent_ns = sum(row.ns for row in rows)
        cost = spent_ns * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        owned = one.library is None
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)) if owned else (0, _STATIC_CACHE * cost),
            severity=None if owned else "info",
            spent=one.at,
            message=(
                f"torch.cat copies a buffer of {one.elements // one.calls:,} elements {times(one.calls)} per step, of "
                f"which {percent(one.added, one.elements)} are new: {step.shown(cost)}."
            ),
            advice=_WRITE_INTO if owned else _FIXED_SIZE,
            confidence="medium",
            evidence=(
                Evidence.ms("these calls of cat", spent_ns, f"{work.source}, per step"),
                Evidence("calls", one.calls, "per step", "the ops of a step"),
            ),
        )
