"""Loops that send one sample after the other through a model, and those in which an answer leads to the next call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from perfkit.record.samplers.line_tracer import LineTracer

TEXTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [1], [2, 2], [3, 1, 4], [5, 5], [6, 1]]
ITEMS = len(TEXTS)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(10, 4), nn.Linear(4, 10)

    def forward(self, ids: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        return self.out(self.words(ids))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.state = nn.Embedding(10, 4), nn.GRU(4, 4, batch_first=True), None

    def forward(self, ids: Tensor) -> Tensor:
        answers, self.state = self.cell(self.words(ids), self.state)
        return answers


def items(step: Callable[[Any], Any], model: nn.Module) -> int | None:
    tracer = LineTracer(lambda: "forward")
    with torch.no_grad():
        tracer.start()
        step(model)
        tracer.stop()
    assert tracer.refused is None
    name = type(model).__name__
    [found] = [calls for row in tracer.rows() for calls in row.modules if calls.module == name]
    return found.items


class Ranker:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def scores(self) -> Tensor:
        found = []
        for text in TEXTS:
            ids = torch.tensor([text])
            found.append(self.model(ids, torch.ones_like(ids))[0, 0, 0])
        return torch.stack(found)


def in_a_comprehension(model: Any) -> Any:
    return [model(torch.tensor([text])).mean() for text in TEXTS]


def with_a_gradient_each(model: Any) -> Any:
    total = 0.0
    with torch.enable_grad():
        for text in TEXTS:
            (slope,) = torch.autograd.grad(model(torch.tensor([text])).sum(), model.out.bias, create_graph=True)
            total = total + slope.square().sum()
    return total


def with_an_update_by_each_gradient(model: Any) -> Any:
    with torch.enable_grad():
        for text in TEXTS:
            (slope,) = torch.autograd.grad(model(torch.tensor([text])).sum(), model.out.bias)
            with torch.no_grad():
                model.out.bias.sub_(slope)


def by_index(model: Any) -> Any:
    total = 0.0
    for index in range(len(TEXTS)):
        total += float(model(torch.tensor([TEXTS[index]])).mean())
    return total


def with_another_line(model: Any) -> Any:
    best = {}
    for number, text in enumerate(TEXTS):
        with torch.no_grad():
            answer = model(torch.tensor([text]))
        if answer.sum() > 0:
            best[number] = answer.mean()
    return best


def playing_plans(world: Any) -> Any:
    plans, start = torch.randn(ITEMS, 3, 4), torch.randn(4)
    earned = torch.zeros(ITEMS)
    for number, plan in enumerate(plans):
        state = start
        for action in plan:
            state = world(state, action)
            earned[number] -= state.square().mean()
    return earned


class World(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 4)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([state, action]))


class Embedder:
    """A function between the loop and the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.found, self.last = model, [], None

    @torch.inference_mode()
    def embed(self, text: list[int]) -> Tensor:
        ids = torch.tensor([text])
        return self.model(ids).mean(1)

    def embed_after(self, text: list[int]) -> Tensor:
        return self.model(torch.tensor([[*text, len(self.found)]])).mean(1)

    def embed_and_keep(self, text: list[int]) -> Tensor:
        self.last = self.model(torch.tensor([text])).mean(1)
        return self.last

    def embed_and_count(self, text: list[int]) -> Tensor:
        self.found.append(text)
        return self.model(torch.tensor([text])).mean(1)

    def all(self) -> None:
        for text in TEXTS:
            self.found.append(self.embed(text))

    def all_after(self) -> None:
        for text in TEXTS:
            self.found.append(self.embed_after(text))

    def all_kept(self) -> None:
        for text in TEXTS:
            self.found.append(self.embed_and_keep(text))

    def all_counted(self) -> None:
        answers = [self.embed_and_count(text) for text in TEXTS]
        assert len(answers) == ITEMS


def embed(model: Any, text: list[int]) -> Any:
    return model(torch.tensor([text]))


def by_a_function(model: Any) -> Any:
    return [embed(model, text).mean() for text in TEXTS]


def by_the_numbers_of_its_items(model: Any) -> Any:
    count, answers = len(TEXTS), [0.0] * len(TEXTS)
    for i in range(count):
        answers[i] = float(embed(model, TEXTS[i]).mean())
    return [embed(model, TEXTS[i]) for i in range(count)]


@pytest.mark.parametrize(
    "step",
    [
        lambda model: Ranker(model).scores(),
        in_a_comprehension,
        by_index,
        by_the_numbers_of_its_items,
        with_a_gradient_each,
        with_another_line,
        by_a_function,
        lambda model: Embedder(model).all(),
    ],
)
def test_samples_that_do_not_need_each_other_are_items(step: Callable[[Any], Any]) -> None:
    assert items(step, Model().eval()) == ITEMS


def test_plans_are_items_although_the_states_of_one_plan_need_each_other() -> None:
    assert items(playing_plans, World().eval()) == ITEMS


def decoding(model: Any) -> Any:
    ids = torch.tensor([[1]])
    for _ in TEXTS:
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)


def decoding_a_list(model: Any) -> Any:
    written = [1]
    for text in TEXTS:
        written.append(int(model(torch.tensor([written + text[:1]])).argmax() % 10))


def with_a_cache(model: Any) -> Any:
    cache: list[Tensor] = []
    for text in TEXTS:
        cache.append(model(torch.tensor([text]), None, tuple(cache)))


def with_a_cache_object(model: Any) -> Any:
    cache = object()
    for text in TEXTS:
        model(torch.tensor([text]), cache=cache)


class Game:
    def __init__(self) -> None:
        self.place = 0

    def play(self, text: list[int], push: int) -> None:
        self.place = (text[0] + push) % 10

    def seen(self, text: list[int]) -> list[int]:
        return [self.place, *text]


def in_a_game(model: Any) -> Any:
    game = Game()
    for text in TEXTS:
        ids = torch.tensor([game.seen(text)])
        game.play(text, int(model(ids).argmax()))


def under_another_name(model: Any) -> Any:
    written: list[int] = []
    history = written
    for text in TEXTS:
        ids = torch.tensor([text + history])
        written.append(int(model(ids).argmax() % 10))


def chosen_by_an_answer(model: Any) -> Any:
    shown = 0
    for text in TEXTS:
        ids = torch.tensor([[shown, *text]])
        if model(ids).sum() > 0:
            shown = 1


def until_found(model: Any) -> Any:
    for text in TEXTS:
        if model(torch.tensor([text])).sum() > 1e9:
            break


def with_updates(model: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for text in TEXTS:
        model(torch.tensor([text]))
        optimizer.step()


def as_they_come(model: Any) -> Any:
    for text in iter(TEXTS):
        model(torch.tensor([text]))


def in_batches(model: Any) -> Any:
    for text in TEXTS:
        model(torch.tensor([text, text]))


def some_of_them(model: Any) -> Any:
    for i in range(5):
        model(torch.tensor([TEXTS[i]]))


def every_second_of_two(model: Any) -> Any:
    pair, count = [[1], [2]], 16
    for i in range(0, count, 2):
        model(torch.tensor([pair[i % 2]]))
        pair[i % 2] = pair[i % 2][:]


def by_a_number_that_is_no_index(model: Any) -> Any:
    count = len(TEXTS)
    for i in range(count):
        model(torch.tensor([[i, count]]))


def the_same_one_again(model: Any) -> Any:
    count, last = len(TEXTS), [1]
    for i in range(count):
        answer = model(torch.tensor([[*TEXTS[i], *last]]))
        last = [int(answer.argmax()) % 10]


@pytest.mark.parametrize(
    "step",
    [
        some_of_them,
        by_a_number_that_is_no_index,
        every_second_of_two,
        the_same_one_again,
        decoding,
        decoding_a_list,
        with_a_cache,
        with_a_cache_object,
        in_a_game,
        under_another_name,
        chosen_by_an_answer,
        until_found,
        with_updates,
        with_an_update_by_each_gradient,
        as_they_come,
        in_batches,
        lambda model: Embedder(model).all_after(),
        lambda model: Embedder(model).all_kept(),
        lambda model: Embedder(model).all_counted(),
    ],
)
def test_calls_that_may_need_the_answer_before_or_have_no_single_sample_are_not(step: Callable[[Any], Any]) -> None:
    assert items(step, Model().eval()) is None


def test_a_model_that_keeps_a_state_has_no_samples_for_themselves() -> None:
    assert items(in_a_comprehension, Stateful().eval()) is None


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 2)

    def step(self, seen: Tensor) -> Tensor:
        return self.body(seen).softmax(-1)


def test_a_model_is_asked_for_the_rows_of_an_array_by_a_method_called_step() -> None:
    seen, model = np.zeros((ITEMS, 4), dtype=np.float32), Policy()
    tracer = LineTracer(lambda: "forward")
    with torch.no_grad():
        tracer.start()
        [model.step(torch.from_numpy(one).unsqueeze(0)) for one in seen]
        tracer.stop()

    [found] = [calls for row in tracer.rows() for calls in row.modules]
    assert (found.module, found.items) == ("Linear", ITEMS)


def test_what_a_simulator_is_asked_next_needs_the_answer_before() -> None:
    class Simulator:
        seen = torch.zeros(1, 4)

        def step(self, action: Tensor) -> None:
            self.seen = self.seen + action.sum()

    simulator, model = Simulator(), Policy()
    tracer = LineTracer(lambda: "forward")
    with torch.no_grad():
        tracer.start()
        [simulator.step(model.step(simulator.seen)) for _ in range(ITEMS)]
        tracer.stop()

    [found] = [calls for row in tracer.rows() for calls in row.modules]
    assert found.items is None
