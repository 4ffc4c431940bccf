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


class Attention:
    def __init__(self, heads: int) -> None:
        self.heads, self.seen = heads, 0

    def bias(self, length: int) -> Tensor:
        return self.slopes()[:, None] * torch.arange(length)

    def slopes(self) -> Tensor:
        return 2.0 ** -torch.arange(self.heads)

    def seen_so_far(self) -> Tensor:
        return torch.full((SIDE,), self.seen)

    def counted(self) -> Tensor:
        self.seen += 1
        return torch.full((SIDE,), self.seen)


def spread(features: Tensor, links: Tensor) -> Tensor:
    return torch.zeros_like(features).index_add_(0, links[1], features[links[0]])


def in_two_steps(step: Callable[[], Any]) -> list[str]:
    """The functions with a constant result in a step that another one follows."""
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    step()
    tracer.stop()
    tracer.start_again()
    step()
    tracer.stop_again()
    assert tracer.refused is None
    return sorted(str(calls.called.function) for row in tracer.rows() for calls in row.constants)


def test_a_method_that_reads_plain_attributes_is_constant_in_every_block_if_the_next_step_shows_the_same() -> None:
    blocks = [Attention(SIDE), Attention(SIDE)]

    def step() -> None:
        for block in blocks:
            block.bias(SIDE)

    assert in_two_steps(step) == ["Attention.bias"]
    assert found(step) == []


def test_tensors_that_stay_the_same_make_a_constant_result() -> None:
    features, links = torch.randn(SIDE, 2), torch.tensor([[0, 1], [2, 3]])

    assert in_two_steps(lambda: spread(features, links)) == ["spread"]


def test_what_the_next_step_passes_reads_or_gets_otherwise_is_not_constant() -> None:
    batches = iter([torch.ones(SIDE, 2), torch.ones(SIDE, 2)])
    kept = list(batches)
    links, written, block = torch.tensor([[0, 1], [2, 3]]), torch.ones(SIDE, 2), Attention(SIDE)
    numbers, left = iter([3, 4]), iter(kept)

    def step() -> None:
        spread(next(left), links)
        spread(torch.ones(SIDE, 2), links)
        written.add_(1)
        spread(written, links)
        mask(next(numbers))
        block.seen += 1
        block.seen_so_far()
        block.counted()

    assert in_two_steps(step) == []


def test_a_tensor_with_a_graph_or_weights_is_no_constant() -> None:
    weights, links = torch.randn(SIDE, 2, requires_grad=True), torch.tensor([[0, 1], [2, 3]])

    def step() -> None:
        with torch.no_grad():
            spread(weights, links)

    assert in_two_steps(step) == []


class Anchors:
    def __init__(self, scales: Any) -> None:
        self.scales = scales

    def build(self, shapes: Any) -> Tensor:
        return torch.tensor([[height * s, width * s] for height, width in shapes for s in self.scales])


def test_sizes_in_tuples_and_settings_in_lists_are_plain_values() -> None:
    fixed, data = Anchors([0.5, 2.0]), Anchors([torch.tensor(0.5)])
    calls = iter(range(99))

    def step() -> None:
        fixed.build(((8, 8), (4, 4)))

    def changing() -> None:
        fixed.build(((next(calls), 8), (4, 4)))

    assert in_two_steps(step) == ["Anchors.build"]
    assert in_two_steps(changing) == []
    assert in_two_steps(lambda: data.build(((8, 8),))) == []
    # Without a second step they may be data.
    assert found(step) == []
