"""Changes of what the layers of a model compute: the results stay the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import perfkit


class Branching(nn.Module):
    """One convolution that only a norm follows, one whose result is used twice, and one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.twice, self.shared = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.alone(x)).relu()
        y = self.twice(x)
        x = y + self.norms[1](y)
        return self.norms[2](self.shared(x)) + self.shared(x)


def train(model: nn.Module, steps: int = 4) -> list[float]:
    torch.manual_seed(1)
    # Not Adam: it would turn the rounding errors that are the gradient of such a bias into steps of full size.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, 8, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_bias_goes_where_only_a_norm_follows_and_the_model_stays_the_same() -> None:
    torch.manual_seed(0)
    model = Branching()
    twin, shown = copy.deepcopy(model), torch.randn(2, 3, 8, 8)
    expected = train(twin)
    with perfkit.changes("no-bias-before-norm") as applied:
        assert train(model) == pytest.approx(expected, rel=1e-5)
    assert applied.report()[0].count == 1
    assert model.alone.bias.eq(0).all()
    assert model.alone.bias.grad is None
    assert model.twice.bias.ne(0).all()
    assert model.shared.bias.ne(0).all()
    assert torch.allclose(model.eval()(shown), twin.eval()(shown), atol=1e-4)


def test_the_model_evaluates_the_same_right_after_its_bias_is_gone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    with torch.no_grad():
        model[1].running_mean.fill_(0.3)  # type: ignore[operator,union-attr]
    images = torch.randn(2, 3, 6, 6)
    with perfkit.changes("no-bias-before-norm"):
        model(images)
        model[1].momentum = 0.0  # type: ignore[assignment]
        before = model.eval()(images)
        model.train()(images)
        assert model[0].bias.eq(0).all()  # type: ignore[operator,union-attr]
        assert torch.allclose(model.eval()(images), before, atol=1e-5)
    assert torch.allclose(model(images), before, atol=1e-5)


def test_a_norm_that_does_not_subtract_the_mean_of_the_batch_keeps_the_bias() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model[1].eval()
    with perfkit.changes("no-bias-before-norm") as applied:
        for _ in range(2):
            model(torch.randn(2, 3, 6, 6)).sum().backward()
    assert applied.report()[0].count == 0


def test_biases_are_found_in_autocast() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with perfkit.changes("no-bias-before-norm") as applied:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss: Any = model(torch.randn(2, 3, 6, 6)).sum()
            loss.backward()
    assert applied.report()[0].count == 1
