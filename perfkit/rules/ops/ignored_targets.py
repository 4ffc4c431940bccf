"""Scores of all classes are computed where the loss ignores the target.

Problem: the last layer of a language model or of a recommender has thousands of columns. Where most targets are
`ignore_index` (words that are not masked, prompts, padding), its products and the softmax are computed there too, in
the forward and in the backward, and thrown away.

How it shows: a loss ignores at least a quarter of its targets, and what the scores of those take is 5% of the step or
more.

Causes: `cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=-100)` for masked words; fine-tuning on
answers whose prompts are in the same row; batches that are padded.

Fix: choose the positions first, and score only those.

    seen = targets != -100
    loss = F.cross_entropy(head(states[seen]), targets[seen])

Saving: that share of the products that make the scores, of the softmax and of the loss, and of their backward. At least
75% of it: choosing rows copies them (chosen; of one program 48% of the step was said, and 60% saved).

Source: the targets of one step, counted; the shapes and times of ops in the step for lines. A quarter was chosen. Only
losses that the program itself computes: what a library scores is not the user's to change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from perfkit._format import percent
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import IgnoredTargets, Lines

ID = "ignored-targets"
CLAIMS = COMPUTING

#: The share of targets from which on they are reported (chosen).
_MANY = 0.25
#: The share of the cost that is saved at least (chosen).
_MINIMUM = 0.75
_PRODUCTS = re.compile(r"aten::(?:addmm|mm|linear|matmul|bmm)")
_LOSS = re.compile(r"aten::(?:_?log_softmax\w*|nll_loss\w*|cross_entropy_loss)")


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find losses that ignore targets, and what the scores of those take."""
    for one in lines.ignored_targets:
        share = one.ignored / one.targets
        scores = [row for row in work.rows if _is_of(row, one)]
        cost = share * sum(row.ns for row in scores) * step.wall_ns / max(1, work.step_ns)
        if share < _MANY or step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=busiest_place(scores),
            change=_computed_at(scores, one) or one.at,
            message=(
                f"The loss ignores {percent(one.ignored, one.targets)} of its {one.targets:,} targets, and the scores "
                f"of {one.classes:,} classes are computed there too: {step.shown(cost)}."
            ),
            advice="Choose the positions that have a target first, and compute scores of those only.",
            confidence="medium",
            evidence=(
                Evidence("ignored targets", one.ignored, f"of {one.targets}", "the targets of a step, counted"),
                Evidence.ms("ops on all scores", sum(row.ns for row in scores), f"{work.source}, per step"),
            ),
        )


def _computed_at(scores: Sequence[OpWorkTime], of: IgnoredTargets) -> Location | None:
    """The line that computes the scores, where the function of the loss does: positions are chosen before it."""
    made = [row for row in scores if row.phase != "backward" and _PRODUCTS.fullmatch(row.op)]
    here = (row.at for row in made if row.at is not None and (row.at.file, row.at.function) == (of.file, of.function))
    return next(here, None)


def _is_of(row: OpWorkTime, of: IgnoredTargets) -> bool:
    """Whether an op makes or reads the scores of all targets: by its shapes, as the backward has no names for them."""
    shapes = [tuple(map(int, shape.split("x"))) for shape in row.shapes.split() if re.fullmatch(r"[\dx]+", shape)]
    if _LOSS.fullmatch(row.op):
        return any(prod(shape) == of.targets * of.classes for shape in shapes)
    if not _PRODUCTS.fullmatch(row.op):
        return False
    positions = any(of.targets in (prod(shape[:-1]), prod(shape[1:]), prod(shape[:1])) for shape in shapes)
    return positions and any(of.classes in shape for shape in shapes)
