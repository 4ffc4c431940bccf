"""Which tensors and graphs count as leaks, and when a program's tensors are checked; the clock is a fake one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit.record.watchers import tensor_leaks
from perfkit.record.watchers.tensor_leaks import TensorLeakWatch


class Clock:
    """A clock on which enough time passes for every check."""

    now = 0

    def __call__(self) -> int:
        self.now += 10**12
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[TensorLeakWatch]:
    gc.collect()  # what the test before has left would be freed between two checks
    gc.freeze()  # and what it keeps may be more objects than are looked at
    clock = Clock()
    monkeypatch.setattr("perfkit._clock.now_ns", clock)
    yield TensorLeakWatch()
    gc.unfreeze()


def run_steps(watch: TensorLeakWatch, each_step: Any) -> TensorLeakWatch:
    for step in range(81):
        watch.check(step)
        each_step(step)
    return watch


def test_growing_tensors_with_a_graph_are_found_with_what_holds_them(watch: TensorLeakWatch) -> None:
    weight = torch.ones(7, 5, requires_grad=True)
    losses = []

    def step(number: int) -> None:
        losses.append(weight * number)

    run_steps(watch, step)

    assert (watch.leaks[0].grown, watch.leaks[0].steps, watch.leaks[0].graph) == (40, 40, True)
    assert watch.leaks[0].name == "losses"
    assert watch.leaks[0].places
    assert Path(watch.leaks[0].places[0].file).name == Path(__file__).name


def test_tensors_that_are_replaced_in_every_step_are_no_leak(watch: TensorLeakWatch) -> None:
    weight = torch.ones(7, 5, requires_grad=True)
    last: list[Any] = []

    def step(number: int) -> None:
        # More from check to check, and all of them new.
        last[:] = [weight * n for n in range(2 * number)]

    run_steps(watch, step)

    assert [one for one in watch.leaks if one.graph] == []


def test_a_sum_that_keeps_its_graph_is_found_by_the_graphs_nodes(watch: TensorLeakWatch) -> None:
    weight = torch.ones(3, requires_grad=True)
    total = weight.sum()
    for step in range(81):
        watch.check(step)
        total = total + weight.sum() * step

    assert watch.leaks[0].nodes_grown >= 40
    assert watch.leaks[0].name == "total"


def test_the_checks_get_rarer(watch: TensorLeakWatch) -> None:
    checked = [step for step in range(700) if watch.check(step)]

    assert checked == [20, 40, 80, 160, 320, 640]


@pytest.mark.parametrize(("step_ms", "check_ms"), [(0.1, 70), (1, 30), (100, 70), (1_000, 400)])
def test_checks_take_a_two_hundredth_of_the_time_beyond_the_first_few(
    clock: Any, monkeypatch: pytest.MonkeyPatch, step_ms: float, check_ms: float
) -> None:
    checked: list[int] = []

    def alive() -> dict[Any, Any]:
        clock.pass_ms(check_ms)
        return {}

    monkeypatch.setattr(tensor_leaks, "_alive", alive)
    monkeypatch.setattr(tensor_leaks, "time", SimpleNamespace(thread_time_ns=clock))
    watch = TensorLeakWatch()
    for step in range(1, 50_000):
        clock.pass_ms(step_ms)
        if watch.check(step):
            checked.append(step)

    assert checked
    assert all(after >= 2 * before for before, after in pairwise(checked))
    assert len(checked) * check_ms < 150 + 2 * check_ms + 50_000 * step_ms / 200
    assert checked[0] * step_ms >= 200


class Centre:
    def __init__(self) -> None:
        self.centre = torch.zeros(3)

    def moved_to(self, value: torch.Tensor) -> torch.Tensor:
        self.centre = 0.9 * self.centre + 0.1 * value
        return (value - self.centre).square().sum()


def test_a_graph_that_an_attribute_carries_on_is_found_by_its_name_and_not_by_the_loss(watch: TensorLeakWatch) -> None:
    weight, running = torch.ones(3, requires_grad=True), Centre()
    loss = None
    for step in range(81):
        watch.check(step)
        loss = running.moved_to(2 * weight)

    assert loss is not None
    assert {one.name for one in watch.leaks if one.graph} == {"centre"}
