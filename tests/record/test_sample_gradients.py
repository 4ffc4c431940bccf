"""Copies of samples that get a gradient each, which would be a sum if a layer computed equal ones once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import RepeatedSamples

IMAGES, COPIES, SIDE = 6, 4, 16
ALL = IMAGES * COPIES
X = torch.randn(IMAGES, 3, SIDE, SIDE)
CONV, SECOND = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
OTHER, OTHERS = nn.Linear(64, 32), torch.randn(16, 64)


def found(step: Callable[[], Any]) -> tuple[RepeatedSamples, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return log.inputs.repeated_samples()


def held(copies: Tensor) -> Tensor:
    return copies.requires_grad_()


def retained(copies: Tensor) -> Tensor:
    hidden = copies * torch.ones((), requires_grad=True)
    hidden.retain_grad()
    return hidden


@pytest.mark.parametrize("copy", [held, retained])
@pytest.mark.parametrize(
    "use",
    [lambda x: x, lambda x: x * 0.5, lambda x: x[:, :, :12].flip(2), lambda x: x.view(ALL, 3, SIDE, SIDE)],
    ids=["copies", "scaled", "a part", "a view"],
)
def test_copies_that_get_a_gradient_each_are_not_counted(
    copy: Callable[[Tensor], Tensor], use: Callable[[Tensor], Tensor]
) -> None:
    assert found(lambda: CONV(use(copy(X.repeat_interleave(COPIES, dim=0))))) == ()
    assert len(found(lambda: CONV(use(X.repeat_interleave(COPIES, dim=0))))) == 1


def test_copies_that_a_parameter_for_each_is_added_to_are_not_counted() -> None:
    delta = nn.Parameter(torch.zeros(ALL, 3, SIDE, SIDE))

    assert found(lambda: CONV(X.repeat_interleave(COPIES, dim=0) + delta)) == ()
    assert len(found(lambda: CONV(X.repeat_interleave(COPIES, dim=0) + delta[:1].detach()))) == 1


def test_an_expanded_leaf_and_copies_of_a_dataset_with_gradients_are_not_counted() -> None:
    def expanded() -> Tensor:
        leaf = X.expand(COPIES, *X.shape).requires_grad_()
        return CONV(leaf.reshape(ALL, 3, SIDE, SIDE))

    copies = X.repeat_interleave(COPIES, dim=0).requires_grad_()

    assert found(expanded) == ()
    assert found(lambda: OTHER(OTHERS).sum() + CONV(copies * 2).sum()) == ()


@pytest.mark.parametrize("scale", [1, 2])
def test_images_whose_gradient_is_a_sum_over_their_copies_are_counted(scale: int) -> None:
    images = X.clone().requires_grad_()

    [row] = found(lambda: CONV((images if scale == 1 else images * scale).repeat_interleave(COPIES, dim=0)))
    assert row.needed == IMAGES
    [row] = found(lambda: CONV(images.unsqueeze(1).expand(IMAGES, COPIES, 3, SIDE, SIDE).flatten(0, 1)))
    assert row.needed == IMAGES


def test_layers_before_a_result_that_retains_its_gradient_are_counted_and_those_after_it_are_not() -> None:
    def step() -> None:
        hidden = CONV(X.repeat_interleave(COPIES, dim=0))
        hidden.retain_grad()
        SECOND(F.relu(hidden))

    [row] = found(step)

    assert [one.weight for one in row.layers] == ["16x3x3x3"]
