"""Attention masks places, and all layers compute them nevertheless.

Problem: a mask keeps attention from reading some places, but the layers around it compute them like the others. Where
the loss does not read them either, their forward and backward are for nothing.

How it shows: a place is masked for all queries, in the attention that sees most, and the gradients of its rows are zero
in the products of the backward. At least a quarter of the places are such, and their share of the layers with such
gradients is 5% of the step or more.

Causes: an encoder of masked patches or words that gets all of them with a mask, and drops the masked ones at its end;
padding, where texts of unequal lengths are in one batch.

Fix: leave the places out before the layers, where each sample has as many; else group samples by length, or pack them.

    # before the blocks, by the numbers of the places (batch, kept); other inputs of each place likewise, and no mask
    x = x.gather(1, keep[..., None].expand(-1, -1, x.shape[-1]))

Saving: 60% (chosen) of that share to all of it, and what attention takes less.

Source: the masks and the gradients of one step. A quarter was chosen. Of one program 57% of the loop was saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines, MaskedPlaces

ID = "masked-places"
CLAIMS = COMPUTING
#: Padding is a cause of its own, with another correction.
FOLLOWS = ("padding-wasted", "imbalanced-data")

#: The share of places that is masked at least, and the share of the cost that is saved at least (both chosen).
_MASKED, _MINIMUM = 0.25, 0.6


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find places that are masked and not read, and what the layers take for them."""
    for one in lines.masked_places:
        places = one.shape[0] * one.shape[1]
        share = 1 - one.visible / places
        rows = [row for row in work.rows if _is_over(row, one)]
        spent_ns = sum(row.ns for row in rows)
        cost = share * spent_ns * step.wall_ns / max(1, work.step_ns)
        if share < _MASKED or step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=busiest_place(rows) or one.at,
            change=one.called_from,
            message=(
                f"Attention masks {percent(share, 1)} of {places:,} places for all queries, and no gradient reaches "
                f"them, but all layers compute them: {step.shown(cost)}."
            ),
            advice="Leave the masked places out before the layers (gather those that are kept), or pad less.",
            confidence="medium",
            evidence=(
                Evidence("places that are read", one.visible, f"of {places}", "masks and gradients of a step"),
                Evidence.ms("layers over all places", spent_ns, f"{work.source}, per step"),
            ),
        )


def _is_over(row: OpWorkTime, one: MaskedPlaces) -> bool:
    """Whether an op is over all places, with rows of a width whose gradients are zero there."""
    shapes = [shape.split("x") for shape in row.shapes.split()]
    count, widths = str(one.shape[0] * one.shape[1]), {str(width) for width in one.widths}
    has_width = any(not widths.isdisjoint(shape) for shape in shapes)
    both = [[str(length) for length in order] for order in (one.shape, one.shape[::-1])]
    return has_width and any(count in shape or shape[:2] in both for shape in shapes)
