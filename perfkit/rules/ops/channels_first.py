"""On a CPU, images with their channels first are pooled or resized.

Problem: torch's pooling and resizing take one channel after the other where a channel's pixels are next to each other
in memory, and all channels of a pixel at once where these are. With channels last they are 2 to 17 times as fast.

How it shows: pooling and resizing of images with 8 channels or more and channels first, which take 5% of the step or
more beyond what channels last reaches on this machine.

Causes: channels first is the default.

Fix: give the weights of the model, and the images, the other layout. Results change by rounding only.

    model = Net().to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)

Saving: from 0.7 times what pooling and resizing take beyond channels last, to all of it and 0.6 of what the
convolutions and batch norms of these images take beyond their limit, which is that of the faster layout.

Source: PyTorch's channels-last tutorial; the limits of the machine, which have both layouts; networks and programs in
both layouts on one CPU (CALIBRATION.md). A ``view`` of images that needs channels first has to
be ``reshape``. On a GPU these kernels take little of a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._resize_orders import left_of, reported_orders
from perfkit.rules._settings import first_call
from perfkit.rules._work_rows import busiest_place, limit_ns
from perfkit.run.records import MODELS, Lines, MachineLimits, OpKind, Rank, ResizeOrder

ID = "channels-first"
CLAIMS = (Selector(owner="computing"),)

_KINDS: dict[OpKind, str] = {
    "max pool": "Max pooling",
    "average pool": "Average pooling",
    "nearest": "Resizing",
    "bilinear": "Resizing",
}
#: Channels from which on channels last is faster: with 3 both took equally long, with 8 it was 2 to 6 times as fast.
_CHANNELS = 8
_SHAPE = re.compile(r"\d+x(\d+)x\d+x\d+")
#: The saving at least, as a share of what pooling and resizing take beyond channels last, and of the other ops on these
#: images at most: nine of ten programs saved that much, and ten no more (CALIBRATION.md).
_LEAST, _OF_OTHERS = 0.7, 0.6


def check(
    step: StepBudget, work: StepWork, limits: MachineLimits, rank: Rank | None = None, lines: Lines | None = None
) -> Iterator[Finding]:
    """Find pooling and resizing with channels first, and what it takes beyond channels last."""
    orders = [] if lines is None else [one for slow in reported_orders(step, lines, work) for one in slow.orders]
    of_work = [_in_other_order(row, orders) for row in work.rows]
    rows = [row for row in of_work if _is_slow(row, limits)]
    per_step = step.wall_ns / max(1, work.step_ns)
    beyond = sum(row.ns - limit_ns(row, limits) for row in rows) * per_step
    if step.device is not None or step.is_negligible(beyond):
        return
    # Convolutions and batch norms of the same images may be faster, too.
    others = [row for row in of_work if row.channels_first and row.kind not in _KINDS]
    cost = beyond + _OF_OTHERS * sum(max(0.0, row.ns - limit_ns(row, limits)) for row in others) * per_step
    taken, limit = sum(row.ns for row in rows), sum(limit_ns(row, limits) for row in rows)
    first, *more = dict.fromkeys(_KINDS[row.kind] for row in rows if row.kind is not None)
    yield step.finding(
        cost=cost,
        saving=(_LEAST * beyond, cost),
        spent=busiest_place(rows),
        change=first_call(rank, MODELS) if rank is not None else None,
        message=(
            f"{' and '.join([first, *map(str.lower, more)])} with channels first {'take' if more else 'takes'} "
            f"{ms(taken * per_step)}, {taken / max(1.0, limit):.0f} times as long as with channels last; with the "
            f"convolutions and norms of these images the layout costs up to {step.shown(cost)}."
        ),
        advice="Keep the model and its inputs in torch.channels_last: .to(memory_format=torch.channels_last).",
        evidence=(
            Evidence.ms("pooling and resizing", round(taken), f"{work.source}, per step"),
            Evidence.ms("with channels last", round(limit), f"measured on {limits.cpu}"),
            Evidence("shapes", rows[0].shapes.split(" ")[0], "", "the longest of them"),
        ),
    )


def _in_other_order(row: OpWorkTime, orders: list[ResizeOrder]) -> OpWorkTime:
    """The part of a row that `resize-order`, which reports these orders, does not count."""
    left = min((left_of(row, one) for one in orders), default=1.0)
    return row if left >= 1.0 else msgspec.structs.replace(row, ns=round(left * row.ns), calls=left * row.calls)


def _is_slow(row: OpWorkTime, limits: MachineLimits) -> bool:
    """Whether a row is pooling or resizing of images whose other layout is faster."""
    if not row.channels_first or row.kind not in _KINDS or row.kind not in limits.layers or row.precision != "float32":
        return False
    shape = _SHAPE.match(row.shapes)
    return shape is not None and int(shape[1]) >= _CHANNELS and row.ns > limit_ns(row, limits)
