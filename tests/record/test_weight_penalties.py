"""Penalties of parameters are found by the ops of a step: sums of their squares, and their norms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import WeightPenalty


def penalties(loss: Callable[[], Tensor]) -> tuple[WeightPenalty, ...]:
    """The penalties in a loss, of the second of two steps."""
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        loss()
        log.stop()
    return log.inputs.weight_penalties.rows()


def test_squares_of_parameters_that_are_summed_up_are_a_penalty_however_they_are_written() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))

    def written(square: Callable[[Tensor], Tensor]) -> list[tuple[int, int, int]]:
        found = penalties(lambda: sum(square(weight).sum() for weight in model.parameters()))  # type: ignore[return-value]
        return [(one.parameters, one.elements, len(one.shapes)) for one in found]

    assert written(lambda weight: weight.pow(2)) == [(4, 46, 4)]
    assert written(lambda weight: weight**2) == [(4, 46, 4)]
    assert written(lambda weight: weight * weight) == [(4, 46, 4)]
    assert written(torch.square) == [(4, 46, 4)]
    assert written(torch.norm) == [(4, 46, 4)]


def test_powers_of_activations_norms_of_rows_and_norms_without_gradients_are_none() -> None:
    layer, x = nn.Linear(8, 4), torch.randn(3, 8)

    def loss() -> Tensor:
        with torch.no_grad():
            total = layer.weight.norm()
        rows = nn.functional.normalize(layer.weight, dim=1)
        return layer(x).pow(2).sum() + rows.sum() + layer.weight.pow(3).sum() + layer.weight.abs().sum() + total

    assert penalties(loss) == ()


def test_squares_that_change_before_they_are_summed_up_are_no_penalty() -> None:
    weight = nn.Parameter(torch.randn(4, 4))

    def loss() -> Tensor:
        squares = weight.pow(2)
        squares.mul_(torch.rand(4, 4))
        return squares.sum()

    assert penalties(loss) == ()
