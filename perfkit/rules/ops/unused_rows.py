"""A step computes rows that nothing in it reads.

Problem: all rows of a catalogue, a graph or a memory bank go through a network, and a batch then picks a few of the
results by an index; or scores of all words at each place of a text are computed, and those of one place are read; or a
product of matrices is computed, and its diagonal is read. The rest is computed for nothing, and its backward too. Or
each expert of a mixture computes all rows, and those that it is not chosen for are multiplied by zero.

How it shows: an index picks at most half of the rows of a tensor that was computed in the same step, row by row, and no
other op reads that tensor; or a view of at most half of a product's wide result is all that is read of it. What the ops
on these rows take, by the share that is not picked, is 5% of the step or more. Or a line calls several modules of one
class, whose rows are multiplied by a factor each, and at least half of these are zero.

Causes: `encode(catalogue)[ids]`; scores of all positions of which a few have a target; features of all nodes for a loss
over some of them.

Fix: pick first.

    vectors = encode(catalogue[ids])                 # not: encode(catalogue)[ids]
    rows = gate.nonzero().squeeze(-1)                # of one expert; not: gate[:, None] * expert(x)
    out.index_add_(0, rows, gate[rows, None] * expert(x[rows]))
    scores = head(hidden[:, -1])                     # not: head(hidden)[:, -1]
    model(**batch, logits_to_keep=1)                 # the same in transformers
    same = (a * b).sum(-1)                           # not: (a @ b.T).diagonal()

Saving: the share of the rows that is not picked, of the ops on them and their backward; at least 70% of it (chosen):
what does not follow the number of rows remains.

Source: the ops of one step, which are followed row by row. Where an op mixes rows (batch norm, attention, messages
along edges) all are needed. At most half is chosen. On a CPU. Of one program 59% of the loop was saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import DroppedRows, GatedRows, Lines, ModuleCalls, TracedLine

ID = "unused-rows"
CLAIMS = COMPUTING

#: At most this share of the rows is picked, and the share of the cost that is saved at least (both chosen).
_PICKED, _MINIMUM = 0.5, 0.7


def check(step: StepBudget, lines: Lines, work: StepWork | None = None) -> Iterator[Finding]:
    """Find rows that are computed and not picked, or multiplied by zero, and what the ops on them take."""
    yield from _gated(step, lines)
    if work is not None:
        yield from _dropped(step, lines, work)


def _gated(step: StepBudget, lines: Lines) -> Iterator[Finding]:
    """What the experts of a mixture take whose rows are multiplied by a factor each, half of which or more are zero."""
    trained = step.phase("backward") is not None
    for one in lines.gated_rows:
        row = _calls_of(one, lines)
        if row is None or one.used > _PICKED * one.rows:
            continue
        experts = _experts(row)
        all_ns = cost_of_calls(sum(calls.host_ns for calls in experts), row, lines, step, backward=trained)
        cost = (1 - one.used / one.rows) * all_ns
        if step.is_negligible(cost):
            continue
        name, unused = experts[0].module, percent(one.rows - one.used, one.rows)
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=row.at,
            change=one.at,
            message=(
                f"{name} computes {one.rows // one.calls:,} rows in each of {one.calls} calls, and "
                f"{unused} of them are multiplied by zero: {step.shown(cost)}{', its backward included' * trained}."
            ),
            advice=(
                f"Call {name} with the rows only whose gate is not zero: rows = gate.flatten().nonzero().squeeze(-1); "
                "out.index_add_(0, rows, gate.flatten()[rows, None] * expert(x.flatten(0, -2)[rows])), where out has "
                "as many rows of zeros."
            ),
            confidence="medium",
            evidence=(
                Evidence("rows with a factor of zero", unused, "", "the ops of one step"),
                Evidence.ms(f"{name} in line {row.line}", round(all_ns), "the step that was traced by line"),
            ),
        )


def _experts(row: TracedLine) -> list[ModuleCalls]:
    """The modules of one class that a line calls, where they are several; none else.

    A single model may have a loss at some places only, and may compute each row from the others: all are needed then.
    """
    longest = max(row.modules, key=lambda calls: calls.host_ns, default=None)
    alike = [calls for calls in row.modules if longest is not None and calls.module == longest.module]
    return alike if len(alike) > 1 else []


def _calls_of(one: GatedRows, lines: Lines) -> TracedLine | None:
    """The line that calls the experts whose rows these are: the same, else the next one above with as many calls."""
    own = [
        row
        for row in lines.traced
        if (row.file, row.function) == (one.file, one.function)
        and row.line <= one.line
        and (experts := _experts(row))
        and (row.line == one.line or sum(calls.calls for calls in experts) == one.calls)
    ]
    return max(own, key=lambda row: row.line, default=None)


def _dropped(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """What the ops on rows take that nothing picks."""
    for one in lines.dropped_rows:
        rows = [row for row in work.rows if _is_of(row, one)]
        spent_ns = sum(row.ns for row in rows)
        cost = (1 - one.picked / one.rows) * spent_ns * step.wall_ns / max(1, work.step_ns)
        if one.picked > _PICKED * one.rows or step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=busiest_place(rows) or one.at,
            change=one.at if one.columns is None else one.made_at[0],
            message=f"{_picked(one)}: the others take {step.shown(cost)}.",
            advice=_advice(one),
            confidence="medium",
            evidence=(
                Evidence("rows that are picked", one.picked, f"of {one.rows}", "the ops of a step, row by row"),
                Evidence.ms("ops on all rows", spent_ns, f"{work.source}, per step"),
            ),
        )


def _picked(rows: DroppedRows) -> str:
    if rows.is_diagonal:
        return f"Of a product of {rows.columns:,} x {rows.columns:,} elements the diagonal alone is read"
    of_scores = "" if rows.columns is None else f"of {rows.columns:,} scores "
    return (
        f"{rows.rows:,} rows {of_scores}are computed, of which {rows.picked:,} ({percent(rows.picked, rows.rows)}) are "
        "picked then"
    )


def _advice(rows: DroppedRows) -> str:
    if rows.is_diagonal:
        return "Compute the diagonal alone: (a * b).sum(-1) in place of (a @ b.T).diagonal()."
    if rows.columns is None:
        return "Pick the rows first, and compute those only."
    return "Pick the places first, and compute scores of those only (in transformers: logits_to_keep)."


def _is_of(row: OpWorkTime, of: DroppedRows) -> bool:
    """Whether an op of one of the lines has an input of as many rows; so has its backward."""
    if row.at is None or (row.at.file, row.at.line) not in {(at.file, at.line) for at in of.made_at}:
        return False
    shapes = [shape.split("x") for shape in row.shapes.split()]
    if of.columns is None:
        first = [str(length) for length in of.shape or (of.rows,)]
        return any(shape[: len(first)] == first for shape in shapes)
    # The product and its backward, and what else has the whole result.
    if of.is_diagonal:
        side = str(of.columns)
        return bool(shapes) and (all(side in one for one in shapes) or any(one[-2:] == [side, side] for one in shapes))
    return any(str(of.columns) in shape for shape in shapes) and any(str(of.rows) in shape for shape in shapes)
