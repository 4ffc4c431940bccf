"""A map with many channels is resized before a layer makes few of them, or a layer computes what is then averaged.

Problem: a layer that computes each pixel by itself (a 1x1 convolution, `nn.Linear`) and a resize, whose weights for the
pixels around sum to one, give the same in both orders. Where the layer comes after what adds pixels, both compute
them with all channels; where it comes before an average, it computes pixels of which fewer are left.

How it shows: a resized map of 10,000 elements or more has at least twice as many pixels, is read by such a layer alone
that makes at most half as many channels, and is not kept. Or the result of such a layer is read by an average alone
that leaves at most half of the pixels, or of the words. What the other order saves is 5% of the step or more.

Causes: the head of a segmentation network behind `nn.Upsample`; a pooling behind a 1x1 convolution, as in DenseNet;
features that a layer computes for each word and that are then averaged over a text.

Fix: the other order. Results change by rounding only, gradients too; weights stay as they are.

    return F.interpolate(self.head(x), size, mode="bilinear")       # not: self.head(F.interpolate(x, size, ...))
    nn.Sequential(norm, nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(c, c // 2, 1))            # not: Conv2d, then AvgPool2d
    return self.project(x.mean(1))                                  # not: self.project(x).mean(1)

Saving: of the resize what it takes for the channels that are left out, and of the layer for the pixels; at least 60% of
that. An average that gets more channels in the other order takes longer for them, and that is subtracted.

Source: the ops of one step. Of 20 sizes on a CPU, one thread, with their backward, resizing after the layer saved 0.65
to 1.2 times as much as stated in all but one; averaging first, 0.79 to 1.14 where the layer makes as many channels as
it gets or more (CALIBRATION.md). On a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import times
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import StepWork
from perfkit.rules._resize_orders import is_pooled, reported_orders
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines, ResizeOrder

ID = "resize-order"
CLAIMS = COMPUTING
#: What is the same in every step, or is not read, needs no other order.
FOLLOWS_AT_LINE = ("repeated-work", "repeated-in-step", "unread-results")

#: The share of the cost that is saved at least, and what may be saved beyond it (measured: CALIBRATION.md).
_MINIMUM, _MORE = 0.6, 0.2


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find maps and layers in the slower order by the line of the first op, and what the other order saves."""
    for at, pooled, orders, spent, layers_ns, resizes_ns, cost in reported_orders(step, lines, work):
        largest = max(orders, key=lambda one: one.calls * max(one.places) * one.channels[0])
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost, error=_MORE)),
            spent=busiest_place(spent) or at,
            change=at,
            message=f"{_subject(largest, sum(one.calls for one in orders))}: {step.shown(cost)}.",
            advice=_AVERAGE_FIRST if pooled else _LAYER_FIRST,
            confidence="medium",
            evidence=(
                Evidence.ms("averages" if pooled else "resizes, copies", resizes_ns, f"{work.source}, per step"),
                Evidence.ms("layers", layers_ns, f"{work.source}, per step"),
                Evidence(
                    "pixels before and after", f"{largest.places[0]:,}, {largest.places[1]:,}", "", "of all samples"
                ),
            ),
        )


_LAYER_FIRST = (
    "Apply the layer first, and resize its result: F.interpolate(self.head(x), size), not self.head(F.interpolate(x, "
    "size)); results change by rounding only."
)
_AVERAGE_FIRST = (
    "Average first, and apply the layer to that: self.layer(self.pool(x)), not self.pool(self.layer(x)); results "
    "change by rounding only."
)


def _subject(one: ResizeOrder, calls: int) -> str:
    own, made = one.channels
    ratio = f"{max(one.places) / min(one.places):,.0f}"
    if is_pooled(one):
        return (
            f"A layer makes {made:,} channels of {own:,}, {times(calls)} per step, for "
            f"{ratio} times as many pixels or words as an average leaves of them"
        )
    return (
        f"A map of {own:,} channels is resized to {ratio} times as many pixels, "
        f"{times(calls)} per step, before a layer makes {made:,} channels of them"
    )
