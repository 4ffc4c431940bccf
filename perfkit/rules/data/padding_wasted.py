"""All rows of a model's input end in padding, which is computed like the rest.

Problem: rows that are padded to a fixed length (the longest of the whole data set, `max_length`) make each op of the
model as long as that length, although no row of this batch is. The loss masks what was computed there.

How it shows: the last columns of an input of whole numbers, (samples, length), hold the same number in all rows, or the
last frames of an input of three dimensions, along the longer one, are zero in all; their share of the time of the call
and of its backward is 5% of the step or more.

Causes: padding="max_length" of a tokenizer; a data set that is padded once for all batches; a `collate_fn` that makes
room for the longest recording of all.

Fix: pad each batch to its own longest row, or cut the columns that no row uses.

    words = words[:, : int(lengths.max())]

    tokenizer(texts, padding="longest")

Saving: the share of the columns, of the call and of its backward: at least 70% of that, because what does not follow
the length remains.

In a program that compiles graphs it is information: a model is compiled again for each length.

Source: the inputs of modules in the step that is traced by line. Columns that only some rows need are reported by
imbalanced-data. The threshold is 5% of the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.rules._settings import first_call
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import PADDING, Lines, Rank

ID = "padding-wasted"
CLAIMS = (*COMPUTING, Selector(owner="python", phase="forward"))

#: The share of the padding's cost that is saved at least: chosen, as for imbalanced-data.
_MINIMUM = 0.7


def check(
    step: StepBudget, lines: Lines, rank: Rank | None = None, loader: LoaderUse | None = None
) -> Iterator[Finding]:
    """Find calls of modules on rows that all end in padding."""
    trained = step.phase("backward") is not None
    found = [
        (round(cost_of_calls(calls.padded_ns, row, lines, step, backward=trained)), calls, row)
        for row in lines.traced
        for calls in row.modules
        # Of an embedding alone the rows may be segments or positions, which end in equal numbers; its time is small.
        if calls.padded_ns and calls.module != "Embedding"
    ]
    if not found:
        return
    cost, calls, row = max(found, key=lambda one: one[0])
    if step.is_negligible(cost):
        return
    share = percent(calls.padded_ns or 0, calls.host_ns)
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        # A compiled model is compiled again for each length: then all rows are as long on purpose.
        severity="info" if rank is not None and rank.compilations else None,
        spent=row,
        # Without such a line the rows are padded in a way of their own: the loader is given what does it.
        change=(first_call(rank, PADDING) if rank is not None else None) or (loader.change if loader else None),
        message=(
            f"All rows that {calls.module} reads end in padding, {share} of their length: computing it takes "
            f"{step.shown(cost)}{', its backward included' if trained else ''}."
        ),
        advice='Pad a batch to its own longest row (padding="longest"), or cut the columns that no row uses.',
        evidence=(
            Evidence("padding at the end of all rows", share, "", "inputs of the step that was traced by line"),
            Evidence.ms(f"{calls.module} in line {row.line}", calls.host_ns, f"{calls.calls} calls, forward only"),
        ),
    )
