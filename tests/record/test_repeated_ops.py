"""Ops that compute again what was computed before in the same step, and the line that leads to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import RepeatedOps

FIELD = nn.Linear(6, 6)


def repeated(step: Callable[[], Any]) -> tuple[RepeatedOps, ...]:
    """The repeated ops of the second of two steps."""
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return log.repeated.rows()


def solve(x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = x + 0.1 * torch.tanh(FIELD(x))
    return x


def test_a_solver_that_begins_anew_for_each_point_repeats_the_steps_before() -> None:
    def trajectory(x: Tensor) -> Tensor:
        return torch.stack([solve(x, count) for count in range(1, 7)])

    def step() -> Tensor:
        x = torch.randn(4, 6)
        # The sort takes most of this line, whatever else the machine does.
        return F.mse_loss(trajectory(x), torch.randn(200_000).sort().values[:144].view(6, 4, 6))

    [found] = repeated(step)

    assert found.function.endswith("trajectory")
    assert found.busiest.function == "solve"
    # Of 1 + 2 + ... + 6 steps six are new; each has a product, a tanh, a multiplication and an addition.
    assert found.ops == 4 * (21 - 6)
    assert found.most == 6
    assert 0 < found.host_ns < found.of_ns
    assert found.builds_graph


def test_what_two_losses_compute_each_for_themselves_is_repeated_without_a_graph_too() -> None:
    def distances(x: Tensor) -> Tensor:
        return (x[:, None] - x[None]).pow(2).sum(-1)

    def step() -> Tensor:
        x = torch.randn(16, 3)
        return distances(x).amin(0).sum() + distances(x).amax(0).sum()

    [found] = repeated(step)

    assert (found.ops, found.builds_graph) == (3, False)


def test_a_recurrence_noise_and_equal_elements_repeat_nothing() -> None:
    def step() -> Tensor:
        state, total = torch.randn(4, 6), torch.zeros(4, 6)
        for _ in range(5):
            state = torch.tanh(FIELD(state)) + torch.rand(4, 6)
            total = total + torch.full((4, 6), float(torch.rand(())) > 2)
        return state.exp() + total

    assert repeated(step) == ()


def test_what_adds_nothing_to_a_state_repeats_no_op() -> None:
    def step(rain: Tensor) -> Tensor:
        state = torch.randn(20)
        for day in rain:
            state = state + day
        return state

    assert repeated(lambda: step(torch.zeros(12, 20))) == ()
    assert repeated(lambda: step(torch.randn(12, 20))) == ()
