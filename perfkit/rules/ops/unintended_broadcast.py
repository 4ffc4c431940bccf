"""An op pairs each element of a tensor with each of another, where one with one was meant.

Problem: a target of shape (n, 1) and a prediction of shape (n) broadcast to (n, n) without an error. The loss of a
batch of 1,024 is then the mean over a million pairs: it takes a thousand times as long, and the model learns something
else.

How it shows: an op has two tensors of as many elements, whose shapes are the same without dimensions of 1 but not in
number of dimensions, and its result is at least 16 times as large. What the ops on such results take is 5% of the step
or more.

Causes: a target that was read as a column (`reshape(-1, 1)`, a DataFrame's `[["y"]]`) against `model(x)[:, 0]` or
`.squeeze()`; a mask or a weight with a channel that the other has not.

Fix: give both the same shape where they meet, and say so.

    error = target.squeeze(-1) - predicted          # (n) and (n)

    assert predicted.shape == target.shape

Saving: nearly all that the ops on the large results take, in the forward and in the backward; at least 70% of it
(chosen), since their share of the step is that of a step that was recorded.

Source: the shapes of one step; torch warns of some of its own losses only ("Using a target size that is different to
the input size"). All pairs of one tensor with itself, and of two that both got a dimension, are taken to be meant. Of
one program 50% of the processor time was saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines, WideBroadcast

ID = "unintended-broadcast"
CLAIMS = COMPUTING

#: The share of the cost that is saved at least (chosen).
_MINIMUM = 0.7


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find ops whose result is far larger than both inputs, and what the ops on such results take in their function."""
    functions: dict[tuple[str, str], list[WideBroadcast]] = defaultdict(list)
    for one in lines.wide_broadcasts:
        functions[one.file, one.function].append(one)
    for found in functions.values():
        first = found[0]
        rows = [row for row in work.rows if any(_is_of(row, one) for one in found)]
        cost = sum(row.ns for row in rows) * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=busiest_place(rows) or first.at,
            change=first.at,
            message=(
                f"{first.op} of the shapes {first.one} and {first.other} makes {first.wide}: each element is paired "
                f"with each of the other: {step.shown(cost)}."
            ),
            advice="Give both the same shape where they meet: squeeze(-1) or flatten() the one with a dimension of 1.",
            confidence="medium",
            evidence=(
                Evidence("such calls", sum(one.calls for one in found), "per step", "the shapes of a step's ops"),
                Evidence.ms("ops on what they make", sum(row.ns for row in rows), f"{work.source}, per step"),
            ),
        )


def _is_of(row: OpWorkTime, one: WideBroadcast) -> bool:
    """Whether an op is the one that broadcasts, or has what such an op made among its inputs, in the same function."""
    if row.at is None or (row.at.file, row.at.function) != (one.file, one.function):
        return False
    shapes = row.shapes.split()
    makes = (row.at.line, row.op) == (one.line, one.op) and _text(one.one) in shapes and _text(one.other) in shapes
    return makes or _text(one.wide) in shapes


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
