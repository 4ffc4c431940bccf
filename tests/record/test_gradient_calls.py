"""Calls of torch.autograd.grad in the step traced by line, and those that go through a graph again."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.run.records import GradientCalls


def gradients(step: Callable[[], object]) -> list[GradientCalls]:
    """What the lines of a step computed, in the order of the lines."""
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    step()
    tracer.stop()
    assert tracer.refused is None
    rows = sorted(tracer.rows(), key=lambda row: row.line)
    return [row.gradients for row in rows if row.gradients is not None]


def fields() -> tuple[Tensor, list[Tensor]]:
    """Two fields as the columns of one answer, and the coordinates that they depend on."""
    at = [torch.rand(5, 1, requires_grad=True) for _ in range(3)]
    together = torch.cat(at, dim=1)
    return torch.stack([together.prod(1), together.sum(1).tanh()], dim=1), at


def test_a_call_for_each_input_goes_through_the_graph_again() -> None:
    def step() -> None:
        answer, at = fields()
        for column in range(2):
            field = answer[:, column]
            slopes = [torch.autograd.grad(field, one, torch.ones_like(field), create_graph=True)[0] for one in at]
        sum(slopes).sum().backward()

    by_input, backward = gradients(step)

    assert (by_input.calls, by_input.again, by_input.is_grad, by_input.builds_graph) == (6, 4, True, True)
    assert 0 < by_input.again_ns < by_input.host_ns
    assert (backward.calls, backward.again, backward.is_grad) == (1, 0, False)


def test_one_call_for_all_inputs_does_not() -> None:
    def step() -> None:
        answer, at = fields()
        for column in range(2):
            torch.autograd.grad(answer[:, column].sum(), at, retain_graph=True)

    [one] = gradients(step)

    assert (one.calls, one.again, one.again_ns) == (2, 0, 0)


@pytest.mark.parametrize(("along", "again"), [("same", 1), ("ones", 1), ("none", 1), ("other", 0)])
def test_the_outputs_are_differentiated_along_the_same_vector(along: str, again: int) -> None:
    def step() -> None:
        answer, at = fields()
        field = answer[:, 0].sum() if along == "none" else answer[:, 0]
        vector = torch.arange(1.0, 6.0)
        vectors = {
            "same": [vector, vector],
            "ones": [torch.ones(5), torch.ones(5)],
            "none": [None, torch.ones(())],
            "other": [vector, vector + 1],
        }
        for one, direction in zip(at[:2], vectors[along], strict=True):
            torch.autograd.grad(field, one, direction, retain_graph=True)

    [found] = gradients(step)

    assert (found.calls, found.again) == (2, again)


def test_no_tensor_is_kept_alive() -> None:
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    x = torch.ones(3, requires_grad=True)
    loss = x.square().sum()
    torch.autograd.grad(loss, x)
    alive = weakref.ref(loss)
    del loss
    tracer.stop()

    assert alive() is None
