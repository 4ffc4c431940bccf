"""resize-order: what the other order of a resize, or an average, and a layer saves of both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import channels_first, resize_order
from perfkit.run.records import Lines, MachineLimits, Rate, ResizeOrder

MS = 1_000_000
RESIZE, HEAD, OTHER = (
    Location(file="net.py", line=line, function="Net.forward", owner="user") for line in (20, 22, 40)
)
#: 2 samples of 64 channels, resized from 16 x 16 to 64 x 64 pixels, of which a layer makes 4 channels.
ORDER = ResizeOrder(
    file="net.py", line=20, function="Net.forward", owner="user",
    places=(512, 8192), channels=(64, 4), calls=1, read_at=(HEAD,),
)  # fmt: skip
FLOPS = 2 * 8192 * 64 * 4
RESIZES = ("upsample_bilinear2d", "bilinear", RESIZE)
LAYER = ("convolution", "convolution", HEAD)
#: 8 samples of 32 channels of 28 x 28 pixels, of which a layer makes 64, which are averaged over 2 x 2 pixels.
POOLED = msgspec.structs.replace(ORDER, places=(6272, 1568), channels=(32, 64))


def row(what: tuple[str, Any, Location], ms: float, shapes: str = "", **fields: Any) -> OpWorkTime:
    name, kind, at = what
    given = {"phase": "forward", "calls": 1, "op": f"aten::{name}"} | fields
    return OpWorkTime(kind=kind, at=at, ns=round(ms * MS), ops=1, shapes=shapes, channels_first=True, **given)


ROWS = (
    row(RESIZES, 8, "2x64x16x16"),
    row(RESIZES, 12, "2x64x64x64", op="aten::upsample_bilinear2d_backward", phase="backward"),
    row(LAYER, 4, "2x64x64x64 4x64x1x1", flops=FLOPS),
    row(LAYER, 8, "2x4x64x64", op="aten::convolution_backward", phase="backward", flops=2 * FLOPS),
)


def found(build: Any, rows: tuple[OpWorkTime, ...], *orders: ResizeOrder) -> list[Any]:
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    lines = Lines(period_ns=MS, steps=40, resize_orders=orders)
    return list(build.findings(resize_order, build.step(40, forward=20, backward=20), lines, work))


def test_the_resize_of_the_channels_and_the_layer_of_the_pixels_that_the_other_order_does_without_are_the_cost(
    build: Any,
) -> None:
    others = (
        row(RESIZES, 9, "2x64x8x8"),
        row((*RESIZES[:2], OTHER), 9, "2x64x16x16"),
        row(LAYER, 9, flops=FLOPS + 2),
        row(("relu", "copy", HEAD), 9, "2x64x64x64"),
    )

    [finding] = found(build, ROWS + others, ORDER)

    # Of 20 ms 4 of 64 channels are left, of 12 ms 512 of 8,192 pixels; the recorded step is twice as long as others.
    assert finding.cost_ns == pytest.approx((20 * 15 / 16 + 12 * 15 / 16) / 2 * MS)
    assert finding.saving_low_ns == pytest.approx(0.6 * finding.cost_ns, rel=1e-6)
    assert (finding.change, finding.spent) == (None, RESIZE)
    assert finding.message.startswith(
        "A map of 64 channels is resized to 16 times as many pixels, once per step, before a layer makes 4 channels"
    )
    assert "F.interpolate(self.head(x), size)" in finding.advice


def test_where_the_layer_takes_longer_the_line_of_the_resize_is_the_one_to_edit(build: Any) -> None:
    [finding] = found(build, (*ROWS, row(LAYER, 20, flops=FLOPS)), ORDER)

    assert (finding.change, finding.spent) == (RESIZE, HEAD)


def test_an_average_behind_a_layer_costs_what_the_layer_computes_of_pixels_that_are_not_left(build: Any) -> None:
    flops = 2 * 6272 * 32 * 64
    rows = (
        row(("convolution", "convolution", RESIZE), 8, flops=flops),
        row(("convolution_backward", "convolution", RESIZE), 16, flops=2 * flops, phase="backward"),
        row(("avg_pool2d", "average pool", HEAD), 4, "8x64x28x28"),
    )

    [finding] = found(build, rows, POOLED)

    assert finding.cost_ns == pytest.approx((24 * 3 / 4 + 4 / 2) / 2 * MS)
    assert finding.message.startswith(
        "A layer makes 64 channels of 32, once per step, for 4 times as many pixels or words as an average leaves"
    )
    assert finding.advice.startswith("Average first")


@pytest.mark.parametrize(("places", "times"), [(2100, "3"), (1700, "4"), (1520, "4")])
def test_the_ratio_of_places_is_rounded(build: Any, places: int, times: str) -> None:
    pooled = msgspec.structs.replace(POOLED, places=(6090, places))
    rows = (row(("convolution", "convolution", RESIZE), 20, flops=2 * 6090 * 32 * 64),)

    [finding] = found(build, rows, pooled)

    assert f"for {times} times as many pixels or words" in finding.message


def test_an_average_that_gets_many_more_channels_in_the_other_order_is_no_finding(build: Any) -> None:
    order = msgspec.structs.replace(POOLED, channels=(256, 8))
    rows = (
        row(("convolution", "convolution", RESIZE), 20, flops=2 * 6272 * 256 * 8),
        row(("avg_pool2d", "average pool", HEAD), 1, "8x8x28x28"),
    )

    assert found(build, rows, order) == []
    assert len(found(build, rows[:1], order)) == 1


def test_sizes_of_one_line_are_one_finding(build: Any) -> None:
    smaller = msgspec.structs.replace(ORDER, places=(128, 2048))
    rows = (*ROWS, row(RESIZES, 8, "2x64x8x8"))

    [finding] = found(build, rows, ORDER, smaller)

    assert finding.cost_ns == pytest.approx((20 + 12 + 8) * 15 / 16 / 2 * MS)
    assert "resized to 16 times as many pixels, twice per step" in finding.message


def test_of_ops_whose_shapes_are_not_known_the_calls_that_are_found_count(build: Any) -> None:
    rows = (row(("upsample_bicubic2d", None, RESIZE), 20, calls=4),)

    [finding] = found(build, rows, ORDER)

    assert finding.cost_ns == pytest.approx(20 / 4 * 15 / 16 / 2 * MS)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"channels": (8, 4)}, 1),
        ({"channels": (8, 5)}, 0),
        ({"places": (4096, 8192)}, 1),
        ({"places": (4097, 8192)}, 0),
    ],
)
def test_more_than_half_of_the_channels_or_of_the_pixels_is_no_finding(
    build: Any, fields: dict[str, Any], count: int
) -> None:
    rows = (row(("upsample_bicubic2d", None, RESIZE), 30),)

    assert len(found(build, rows, msgspec.structs.replace(ORDER, **fields))) == count


def test_without_such_orders_or_with_little_time_there_is_no_finding(build: Any) -> None:
    assert found(build, ROWS) == []
    assert found(build, tuple(msgspec.structs.replace(one, ns=MS) for one in ROWS), ORDER) == []


def test_channels_first_leaves_out_what_the_layer_before_the_resize_saves(build: Any) -> None:
    limits = MachineLimits(
        method=6, host="h", cpu="c", torch="t", threads=1, measured_at_ns=1, disturbed=False, op_ns=0, node_ns=0,
        products={}, convolutions={}, functions={}, bandwidth={}, layers={"bilinear": (Rate(1, 1e9),)},
    )  # fmt: skip
    resize = row(RESIZES, 32, "2x64x16x16", flops=MS, bytes=1, precision="float32")
    elsewhere = row((*RESIZES[:2], OTHER), 17, "2x64x16x16", flops=MS, bytes=1, precision="float32")

    def cost(rows: tuple[OpWorkTime, ...], *orders: ResizeOrder) -> list[float]:
        work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
        lines = Lines(period_ns=MS, steps=40, resize_orders=orders)
        step = build.step(40, forward=20, backward=20)
        return [float(one.cost_ns) for one in build.findings(channels_first, step, work, limits, lines)]

    # 1.4 ms of the 40 ms step are too little for resize-order.
    small = row(RESIZES, 3, "2x64x16x16", flops=MS, bytes=1, precision="float32")
    assert cost((elsewhere, small), ORDER) == [pytest.approx(((17 - 1) + (3 - 1)) / 2 * MS)]
    assert cost((resize,)) == [pytest.approx((32 - 1) / 2 * MS)]
    assert cost((resize,), ORDER) == []
    assert cost((resize, elsewhere), ORDER) == [pytest.approx(((17 - 1) + (32 - 1) / 16) / 2 * MS)]
