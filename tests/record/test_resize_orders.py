"""Maps resized before a layer and layers before an average, as the step in which ops are listened to shows them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import Lines, Phase, ResizeOrder

N, C, O, SIZE = 2, 24, 4, 10  # noqa: E741 - outputs
MAPS = torch.randn(N, C, SIZE, SIZE, requires_grad=True)
LAST = MAPS.detach().contiguous(memory_format=torch.channels_last)
SERIES = torch.randn(N, C, 120, requires_grad=True)
BLOCKS = torch.randn(N, C, 4, 5, 5)
ROWS = torch.randn(N, 300, C, requires_grad=True)
HEAD, HEAD_1D, HEAD_3D = nn.Conv2d(C, O, 1), nn.Conv1d(C, O, 1), nn.Conv3d(C, O, 1)
LINEAR, UNBIASED = nn.Linear(C, O), nn.Linear(C, O, bias=False)
WIDE, WIDE_ROWS = nn.Conv2d(C, 32, 1), nn.Linear(C, 32)
ATTENTION = nn.MultiheadAttention(C, 2, batch_first=True)
KEPT = SimpleNamespace(map=None)


def resized(mode: str = "bilinear", times: int = 3, maps: Tensor = MAPS) -> Tensor:
    return F.interpolate(maps, scale_factor=times, mode=mode)


def found(step: Callable[[], Any], *, inference: bool = False) -> tuple[ResizeOrder, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        with torch.inference_mode(inference):
            step()
        log.stop()
    return log.inputs.resize_orders.rows()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("step", "places"),
    [
        (lambda: HEAD(resized()), (200, 1800)),
        (lambda: HEAD(resized("nearest")), (200, 1800)),
        (lambda: HEAD(resized("nearest-exact")), (200, 1800)),
        (lambda: HEAD(resized("bicubic")), (200, 1800)),
        (lambda: HEAD(resized("area")), (200, 1800)),
        (lambda: HEAD(F.interpolate(MAPS, size=(30, 30), mode="bilinear", antialias=True)), (200, 1800)),
        (lambda: HEAD(resized(maps=LAST)), (200, 1800)),
        (lambda: HEAD(resized().contiguous(memory_format=torch.channels_last)), (200, 1800)),
        (lambda: nn.Sequential(nn.Upsample(scale_factor=3), HEAD)(MAPS), (200, 1800)),
        (lambda: HEAD(MAPS.repeat_interleave(3, dim=2)), (200, 600)),
        (lambda: HEAD(MAPS.repeat(1, 1, 3, 3)), (200, 1800)),
        (lambda: HEAD_1D(resized("linear", maps=SERIES)), (240, 720)),
        (lambda: HEAD_3D(resized("trilinear", maps=BLOCKS)), (200, 5400)),
        (lambda: LINEAR(resized("linear", maps=SERIES).transpose(1, 2)), (240, 720)),
        (lambda: LINEAR(resized(maps=LAST).permute(0, 2, 3, 1)), (200, 1800)),
        (lambda: UNBIASED(resized().flatten(2).transpose(1, 2)), (200, 1800)),
    ],
    ids=[
        *("bilinear", "nearest", "nearest-exact", "bicubic", "area", "antialias", "channels last", "a copy"),
        *("modules", "repeat_interleave", "repeat", "a series", "a volume"),
        *("a linear layer", "a linear layer on channels last", "a linear layer on pixels"),
    ],
)
def test_a_resized_map_that_a_layer_reads_is_found_with_its_places_and_channels(
    step: Callable[[], Any], places: tuple[int, int], inference: bool
) -> None:
    [row] = found(step, inference=inference)

    assert (row.places, row.channels, row.calls) == (places, (C, O), 1)
    assert row.read_at[-1].line == step.__code__.co_firstlineno


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("step", "places"),
    [
        (lambda: F.avg_pool2d(WIDE(resized()), 2), (1800, 450)),
        (lambda: F.avg_pool2d(WIDE(resized()), 3, 2, 1, count_include_pad=False), (1800, 450)),
        (lambda: F.adaptive_avg_pool2d(WIDE(resized()), 5), (1800, 50)),
        (lambda: F.adaptive_avg_pool2d(WIDE(resized()), 1), (1800, 2)),
        (lambda: WIDE(resized()).mean((2, 3)), (1800, 2)),
        (lambda: WIDE_ROWS(ROWS).mean(1), (600, 2)),
        (lambda: WIDE_ROWS(ROWS).mean(-2, keepdim=True), (600, 2)),
        (lambda: torch.addmm(WIDE_ROWS.bias, ROWS.flatten(0, 1), WIDE_ROWS.weight.t()).mean(0), (600, 1)),
    ],
    ids=[
        "pool",
        "padding that is not counted",
        "adaptive",
        "global",
        "mean",
        "mean of rows",
        "mean that is kept",
        "addmm",
    ],
)
def test_a_layer_whose_result_is_averaged_over_places_is_found(
    step: Callable[[], Any], places: tuple[int, int], inference: bool
) -> None:
    # What the resized map goes into has more channels than it, and is found as well.
    row = found(step, inference=inference)[-1]

    assert (row.places, row.channels) == (places, (C, 32))


def test_the_lines_of_copies_and_of_the_layer_are_told_and_calls_are_counted() -> None:
    def step() -> None:
        for _ in range(2):
            maps = resized()
            maps = maps.contiguous(memory_format=torch.channels_last)
            HEAD(maps)

    [row] = found(step)

    first = step.__code__.co_firstlineno + 2
    assert (row.line, row.calls, [at.line for at in row.read_at]) == (
        resized.__code__.co_firstlineno + 1,
        2,
        [first + 1, first + 2],
    )
    assert Lines(period_ns=1, steps=1, resize_orders=(row,)).resize_orders[0].at.line == row.line


def kept() -> None:
    KEPT.map = resized()
    HEAD(KEPT.map)


def read_twice(read: Callable[[Tensor], Any]) -> Callable[[], Any]:
    def step() -> None:
        maps = resized()
        HEAD(maps)
        read(maps)

    return step


def with_its_gradient() -> None:
    maps = resized()
    maps.retain_grad()
    HEAD(maps).sum().backward()


def saved_in_place() -> None:
    maps = resized()
    maps.relu_()
    HEAD(maps)


@pytest.mark.parametrize(
    "step",
    [
        lambda: HEAD(nn.BatchNorm2d(C)(resized())),
        lambda: HEAD(resized().relu()),
        saved_in_place,
        lambda: HEAD(F.dropout2d(resized(), 0.1)),
        lambda: HEAD(resized() * torch.rand(30, 30)),
        lambda: HEAD(resized() + torch.rand(30, 30)),
        lambda: nn.Conv2d(C, O, 3, padding=1)(resized()),
        lambda: nn.Conv2d(C, O, 1, stride=2)(resized()),
        lambda: nn.Conv2d(C, O, 1, padding=1)(resized()),
        lambda: nn.Conv2d(C, O, 1, groups=2)(resized()),
        lambda: nn.ConvTranspose2d(C, O, 1)(resized()),
        lambda: nn.Linear(30, O)(resized()),
        lambda: HEAD(resized()[:, :, 1:-1, 1:-1]),
        lambda: HEAD(torch.cat([resized(), resized()], 0)),
        lambda: nn.Conv2d(2 * C, O, 1)(torch.cat([resized(), resized()], 1)),
        lambda: HEAD(resized(times=1)),
        lambda: HEAD(F.interpolate(resized() + 1, scale_factor=0.9, mode="bilinear")),
        lambda: HEAD(F.interpolate(MAPS[:, :, :4, :4], scale_factor=2)),
        lambda: HEAD(F.max_pool2d(resized(), 2)),
        lambda: resized(maps=HEAD(MAPS)),
        lambda: torch.addmm(
            torch.rand(1800, O), resized(maps=LAST).permute(0, 2, 3, 1).reshape(-1, C), LINEAR.weight.t()
        ),
        lambda: HEAD(F.grid_sample(MAPS, torch.rand(N, 30, 30, 2), align_corners=False)),
        read_twice(lambda maps: maps.square().mean()),
        read_twice(HEAD),
        read_twice(lambda maps: maps.tolist()),
        read_twice(lambda maps: maps[0, 0, 0, 0].item()),
        read_twice(lambda maps: pickle.dumps(maps.detach())),
        kept,
        with_its_gradient,
    ],
    ids=[
        *("a norm", "an activation", "in place", "dropout", "a factor of each place", "a summand of each place"),
        *("three by three", "a stride", "a padding", "groups", "transposed", "over places", "a part"),
        *("joined", "joined channels", "its own size", "smaller", "a small one", "pooled", "in order"),
        *("a summand of each place", "grid_sample"),
        *("a loss reads it", "two heads", "Python reads it", "Python reads an element", "saved", "kept"),
        "its gradient is read",
    ],
)
def test_maps_that_need_their_order_or_that_are_needed_are_not(step: Callable[[], Any]) -> None:
    assert found(step) == ()


@pytest.mark.parametrize(
    "step",
    [
        lambda: F.max_pool2d(WIDE(MAPS.repeat(1, 1, 2, 2)), 2),
        lambda: F.avg_pool2d(WIDE(MAPS.repeat(1, 1, 2, 2)).relu(), 2),
        lambda: F.avg_pool2d(WIDE(MAPS.repeat(1, 1, 2, 2)), 3, 2, 1),
        lambda: F.avg_pool2d(WIDE(MAPS.repeat(1, 1, 2, 2)), 3, 2, ceil_mode=True),
        lambda: F.avg_pool2d(WIDE(MAPS.repeat(1, 1, 2, 2)), 2, divisor_override=3),
        lambda: WIDE(MAPS.repeat(1, 1, 2, 2)).mean(1),
        lambda: WIDE(MAPS.repeat(1, 1, 2, 2)).mean(),
        lambda: WIDE_ROWS(ROWS).mean(-1),
        lambda: WIDE_ROWS(ROWS)[:, 1:].mean(1),
        lambda: (torch.rand(300, 40) @ torch.rand(40, 50)).mean(0),
        lambda: torch.addmm(torch.rand(600, 32), ROWS.flatten(0, 1), WIDE_ROWS.weight.t()).view(2, 300, 32).mean(1),
        lambda: torch.addmm(torch.rand(600, 1), ROWS.flatten(0, 1), WIDE_ROWS.weight.t()).mean(0),
        lambda: nn.Conv2d(C, 32, 3, padding=1)(MAPS.repeat(1, 1, 2, 2)).mean((2, 3)),
        lambda: F.adaptive_avg_pool2d(WIDE(MAPS.repeat(1, 1, 2, 2)), 40),
        lambda: ATTENTION(ROWS, ROWS, ROWS)[0].mean(1),
    ],
    ids=[
        *("max pool", "an activation", "a padding", "ceil_mode", "another divisor", "over channels", "over all"),
        *("rows over channels", "without the first row", "no layer"),
        *("a summand of each place", "one for all channels", "three by three", "to more places"),
        "inside of a module of torch",
    ],
)
def test_layers_that_no_average_over_places_alone_follows_are_not(step: Callable[[], Any]) -> None:
    assert [row for row in found(step) if row.places[0] > row.places[1]] == []


@pytest.mark.parametrize(
    ("keep", "count"),
    [
        (lambda maps: None, 1),
        (lambda maps: KEPT.bank.append(maps.detach()), 0),
        (lambda maps: KEPT.bank.append(maps[:, :, 0]), 0),
        (lambda maps: KEPT.bank.append(maps), 0),
        (lambda maps: KEPT.bank.append(maps.detach().numpy()), 0),
    ],
    ids=["nothing", "detached", "a part", "itself", "as an array"],
)
@pytest.mark.parametrize("with_backward", [False, True])
def test_a_variable_of_the_loop_is_not_kept_but_what_the_loop_keeps_besides_is(
    keep: Callable[[Tensor], Any], count: int, with_backward: bool
) -> None:
    phase: list[Phase] = ["forward"]
    log = ConstantOpLog(lambda: phase[0])
    KEPT.bank = []
    for _ in range(2):
        log.start()
        maps = F.interpolate(MAPS, scale_factor=3.0)
        keep(maps)
        loss = HEAD(maps).sum()
        if with_backward:
            phase[0] = "backward"
            loss.backward()
            phase[0] = "forward"
        log.stop()

    assert len(log.inputs.resize_orders.rows()) == count
    KEPT.bank.clear()


def test_what_a_loop_keeps_of_the_rows_that_it_averages_is_needed() -> None:
    log = ConstantOpLog(lambda: "forward")
    bank = []
    for _ in range(2):
        log.start()
        z = WIDE_ROWS(ROWS)
        bank.append(z.detach())
        z.mean(1).square().sum()
        log.stop()

    assert log.inputs.resize_orders.rows() == ()


@pytest.mark.parametrize("reads_after", [False, True])
def test_what_the_backward_reads_of_a_map_does_not_count_and_what_is_read_after_it_does(reads_after: bool) -> None:
    phase: list[Phase] = ["forward"]
    log = ConstantOpLog(lambda: phase[0])

    def step() -> None:
        maps = resized()
        loss = HEAD(maps).sum()
        phase[0] = "backward"
        loss.backward()
        if reads_after:
            maps.detach().abs().mean()
        phase[0] = "forward"

    for _ in range(2):
        log.start()
        step()
        log.stop()

    assert len(log.inputs.resize_orders.rows()) == (not reads_after)
