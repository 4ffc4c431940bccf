"""What stays of the time of ops where a layer comes before what makes more places, or after an average of places."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from perfkit._location import Location
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.run.records import Lines, ResizeOrder

#: The share of the channels that a layer keeps at most, and of the places that there are before an interpolation or
#: after an average (both chosen; with 0.88 of the places the sizes did not tell what is saved: CALIBRATION.md).
_CHANNELS = _PLACES = 0.5
#: Ops that resize a map or copy it, those of the backward of an average and of a repetition, and nodes of the backward
#: of ops whose work is not known.
_RESIZING = re.compile(r"aten::(_?(upsample_|adaptive_avg_pool|avg_pool)\w+|mean|repeat\w*|clone|copy_)$")
_IN_BACKWARD = ("aten::div", "aten::sum")
_NODE = re.compile(r"(Upsample|AvgPool)\w+Backward")


def slow_orders(lines: Lines) -> Iterator[ResizeOrder]:
    """Those whose other order takes less, but for an average that gets more channels in it."""
    for one in lines.resize_orders:
        few_channels = is_pooled(one) or one.channels[1] <= _CHANNELS * one.channels[0]
        if few_channels and min(one.places) <= _PLACES * max(one.places):
            yield one


class SlowOrders(NamedTuple):
    """Orders of one line, the ops of both, and what the other order saves of these in a step."""

    at: Location
    is_pooled: bool
    orders: list[ResizeOrder]
    rows: list[OpWorkTime]
    layers_ns: float
    resizes_ns: float
    cost: float


def reported_orders(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[SlowOrders]:
    """The orders that `resize-order` reports, by the line of the first op."""
    of_line: dict[tuple[Location, bool], list[ResizeOrder]] = defaultdict(list)
    for one in slow_orders(lines):
        of_line[one.at, is_pooled(one)].append(one)
    for (at, pooled), orders in of_line.items():
        spent: list[OpWorkTime] = []
        resizes_ns = layers_ns = saved_ns = 0.0
        for one in orders:
            rows = [row for row in work.rows if row not in spent and (resizes(row, one) or is_layer(row, one))]
            spent += rows
            saved_ns += sum((1 - left_of(row, one)) * row.ns for row in rows)
            layers_ns += sum(row.ns for row in rows if is_layer(row, one))
            resizes_ns += sum(row.ns for row in rows if not is_layer(row, one))
        cost = saved_ns * step.wall_ns / max(1, work.step_ns)
        if cost > 0 and not step.is_negligible(cost):
            yield SlowOrders(at, pooled, orders, spent, layers_ns, resizes_ns, cost)


def is_pooled(one: ResizeOrder) -> bool:
    """Whether a layer comes before an average of places; else an interpolation comes before a layer."""
    return one.places[1] < one.places[0]


def resizes(row: OpWorkTime, one: ResizeOrder) -> bool:
    """Whether an op makes other places of the map, in the forward or in the backward, or copies it."""
    if not _is_at(row, one):
        return False
    if not row.shapes:
        # Its work is not known: nor are its shapes.
        return "upsample" in row.op or "avg_pool" in row.op or _NODE.search(row.op) is not None
    is_op = _RESIZING.match(row.op) is not None or (row.phase == "backward" and row.op in _IN_BACKWARD)
    sizes = {places * _own_channels(one) for places in one.places}
    return is_op and any(size in sizes for size in _sizes(row))


def is_layer(row: OpWorkTime, one: ResizeOrder) -> bool:
    """Whether an op is the layer, or products of its backward, which may be two in one op."""
    flops = 2 * max(one.places) * prod(one.channels)
    return _is_at(row, one) and row.kind in ("convolution", "matmul") and row.flops in (flops, 2 * flops)


def left_of(row: OpWorkTime, one: ResizeOrder) -> float:
    """The share of an op's time that it takes in the other order: 1.0 for an op that is none of both."""
    if resizes(row, one):
        # Of ops without shapes these calls are a part.
        part = 1.0 if row.shapes else min(1.0, one.calls / max(1.0, row.calls))
        other = one.channels[0] if is_pooled(one) else one.channels[1]
        return 1.0 - part * (1.0 - other / _own_channels(one))
    return min(one.places) / max(one.places) if is_layer(row, one) else 1.0


def _own_channels(one: ResizeOrder) -> int:
    """The channels of the map that is interpolated or averaged now."""
    return one.channels[1] if is_pooled(one) else one.channels[0]


def _is_at(row: OpWorkTime, one: ResizeOrder) -> bool:
    return row.at is not None and any((row.at.file, row.at.line) == (at.file, at.line) for at in (one.at, *one.read_at))


def _sizes(row: OpWorkTime) -> Iterator[int]:
    for shape in row.shapes.split():
        yield prod(int(length) if length.isdigit() else 0 for length in shape.split("x"))
