"""Functions that return the same tensors in every step, as the step that is traced by line shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from perfkit.record.samplers.line_tracer import LineTracer

SIDE = 4
STATE = {"step": 0}
MODEL = nn.Linear(SIDE, SIDE)


def found(function: Callable[[], Any]) -> list[str | None]:
    """The functions with a constant result that it calls."""
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    function()
    tracer.stop()
    assert tracer.refused is None
    return [calls.called.function for row in tracer.rows() for calls in row.constants]


def mask(length: int) -> Tensor:
    return torch.ones(length, SIDE).tril()


def table() -> Tensor:
    return torch.stack([mask(SIDE) / 2**power for power in range(3)])


def noise() -> Tensor:
    return torch.randn(SIDE)


def schedule() -> Tensor:
    return torch.full((SIDE,), float(STATE["step"]))


def predicted() -> Tensor:
    return MODEL(torch.ones(SIDE)).detach()


def of_batch(batch: Tensor) -> Tensor:
    return torch.arange(len(batch))


def test_a_table_that_nothing_changes_is_constant() -> None:
    def step() -> None:
        table()
        mask(SIDE)

    assert sorted(map(str, found(step))) == ["mask", "table"]


def codes(text: str, how: str = "utf-8") -> Tensor:
    return torch.tensor(list(text.encode(how)))


def test_a_call_with_the_data_of_a_step_is_not_constant() -> None:
    texts = [f"review {number}" for number in range(3)]

    def step() -> None:
        for text in texts:
            codes(text)
        codes(texts[0])
        for number in (3, 4):
            mask(number)

    assert found(step) == []


def test_a_text_that_stands_in_the_code_is_the_same_in_each_step() -> None:
    assert found(lambda: codes("positions", "ascii")) == ["codes"]
    assert found(lambda: codes("positions")) == ["codes"]


def test_what_draws_reads_state_calls_a_model_or_takes_a_tensor_is_not() -> None:
    def step() -> None:
        noise()
        schedule()
        predicted()
        of_batch(torch.ones(SIDE))

    assert found(step) == []
