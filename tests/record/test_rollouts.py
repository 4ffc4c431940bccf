"""Calls of a model for one observation each, whose graphs wait for one backward, and loops that only look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from perfkit.record.samplers import rollouts
from perfkit.record.samplers.line_tracer import LineTracer

MOVES = 10


class Walk:
    """An environment: an action leads to the next observation."""

    def __init__(self) -> None:
        self.place = 0.0

    def step(self, action: int) -> Tensor:
        self.place += action - 0.5
        return torch.tensor([self.place, 1.0])


def rolls_out(step: Callable[[Any], Any], model: nn.Module) -> bool:
    """Whether calls of the model in a step are a rollout."""
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    step(model)
    tracer.stop()
    assert tracer.refused is None
    rows = [calls for row in tracer.rows() for calls in row.modules]
    return any(calls.rolls_out for calls in rows)


def policy() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


def losses_of_an_episode(model: Any, moves: int = MOVES) -> list[Tensor]:
    walk, seen, losses = Walk(), torch.zeros(2), []
    for _ in range(moves):
        chances = Categorical(logits=model(seen))
        action = chances.sample()
        losses.append(-chances.log_prob(action))
        seen = walk.step(int(action))
    return losses


def episode(model: Any) -> None:
    torch.stack(losses_of_an_episode(model)).sum().backward()


class Agent:
    def __init__(self, model: Any) -> None:
        self.model, self.walk, self.seen = model, Walk(), torch.zeros(1, 2)
        self.losses: list[Tensor] = []

    def act(self, seen: Tensor) -> int:
        chances = Categorical(logits=self.model(seen))
        action = chances.sample()
        self.losses.append(chances.log_prob(action))
        return int(action.item())

    def move(self) -> None:
        self.seen = self.walk.step(self.act(self.seen)).unsqueeze(0)


def with_an_agent(model: Any) -> None:
    agent = Agent(model)
    moves = 0
    while True:
        agent.move()
        moves += 1
        if moves == MOVES:
            break
    torch.stack(agent.losses).sum().backward()


def by_a_function(model: Any) -> None:
    agent = Agent(model)
    seen = agent.seen
    while len(agent.losses) < MOVES:
        action = agent.act(seen)
        if action > 1:
            continue
        seen = agent.walk.step(action).unsqueeze(0)
    torch.stack(agent.losses).sum().backward()


@pytest.mark.parametrize("step", [episode, with_an_agent, by_a_function])
def test_an_episode_whose_graphs_wait_for_one_backward_is_a_rollout(step: Callable[[Any], Any]) -> None:
    assert rolls_out(step, policy())


def without_gradients_and_at_once(model: Any) -> None:
    walk, seen, all_seen = Walk(), torch.zeros(2), []
    for _ in range(MOVES):
        all_seen.append(seen)
        with torch.no_grad():
            action = Categorical(logits=model(seen)).sample()
        seen = walk.step(int(action))
    model(torch.stack(all_seen)).sum().backward()


def from_another_memory(model: Any) -> None:
    losses_of_an_episode(model)
    model(torch.randn(32, 2)).sum().backward()


def a_backward_for_each_move(model: Any) -> None:
    walk, seen = Walk(), torch.zeros(2)
    for _ in range(MOVES):
        scores = model(seen)
        scores.sum().backward()
        seen = walk.step(int(scores.argmax()))


def only_asked(model: Any) -> None:
    losses_of_an_episode(model)


def few_moves(model: Any) -> None:
    torch.stack(losses_of_an_episode(model, 7)).sum().backward()


@pytest.mark.parametrize(
    "step", [without_gradients_and_at_once, from_another_memory, a_backward_for_each_move, only_asked, few_moves]
)
def test_answers_that_one_backward_does_not_go_through_are_no_rollout(step: Callable[[Any], Any]) -> None:
    assert not rolls_out(step, policy())


def samples_of_a_stream(model: Any) -> None:
    total, found = torch.zeros(()), []
    for number in range(MOVES):
        sample = torch.randn(2) + number
        answer = model(sample)
        found.append(int(answer.argmax()))
        total = total + nn.functional.mse_loss(answer, sample)
    total.backward()


def recorded_by_the_object_itself(model: Any) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.losses: list[Tensor] = []

        def keep(self, answer: Tensor) -> None:
            self.losses.append(answer.sum())

        def draw(self) -> Tensor:
            return torch.randn(2)

        def train(self) -> None:
            for _ in range(MOVES):
                self.keep(model(self.draw()))
            torch.stack(self.losses).sum().backward()

    Trainer().train()


def a_batch_of_observations(model: Any) -> None:
    walk, seen, losses = Walk(), torch.zeros(4, 2), []
    for _ in range(MOVES):
        chances = Categorical(logits=model(seen))
        action = chances.sample()
        losses.append(chances.log_prob(action))
        seen = walk.step(int(action[0])).expand(4, 2)
    torch.stack(losses).sum().backward()


def of_growing_length(model: Any) -> None:
    seen, losses = torch.zeros(1, 1, 2), []
    for _ in range(MOVES):
        answer = model(seen)[:, -1:]
        losses.append(answer.sum())
        seen = torch.cat([seen, answer.detach()], dim=1)
    torch.stack(losses).sum().backward()


@pytest.mark.parametrize(
    "step", [samples_of_a_stream, recorded_by_the_object_itself, a_batch_of_observations, of_growing_length]
)
def test_samples_that_follow_from_no_answer_batches_and_texts_are_no_rollout(step: Callable[[Any], Any]) -> None:
    assert not rolls_out(step, policy())


def test_a_state_with_a_graph_is_no_rollout() -> None:
    def step(model: Any) -> None:
        seen, losses = torch.zeros(1, 2), []
        for _ in range(MOVES):
            seen = model(seen)
            losses.append(seen.sum())
        torch.stack(losses).sum().backward()

    assert not rolls_out(step, nn.Linear(2, 2))


def test_an_encoder_before_a_recurrent_state_is_no_rollout() -> None:
    cell, head = nn.GRUCell(2, 4), nn.Linear(4, 2)

    def step(encoder: Any) -> None:
        walk, seen, state, losses = Walk(), torch.zeros(1, 2), torch.zeros(1, 4), []
        for _ in range(MOVES):
            state = cell(encoder(seen), state)
            chances = Categorical(logits=head(state))
            action = chances.sample()
            losses.append(chances.log_prob(action))
            seen = walk.step(int(action)).unsqueeze(0)
        torch.stack(losses).sum().backward()

    assert not rolls_out(step, nn.Linear(2, 2))


class Remembering(nn.Module):
    """Keeps its state from call to call, without its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head, self.state = nn.GRUCell(2, 4), nn.Linear(4, 2), torch.zeros(1, 4)

    def forward(self, seen: Tensor) -> Tensor:
        state = self.cell(seen.view(1, 2), self.state)
        self.state = state.detach()
        return self.head(state).view(2)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(2, 8), nn.Unflatten(0, (1, 4, 2)), nn.BatchNorm1d(4), nn.Flatten(0), nn.Linear(8, 2)),
        Remembering(),
    ],
    ids=["dropout", "batch norm", "a state of its own"],
)
def test_a_model_that_answers_otherwise_to_all_rows_at_once_has_no_rollout(model: nn.Module) -> None:
    assert not rolls_out(episode, model)


def test_dropout_that_is_off_does_not_hide_a_rollout() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2)).eval()

    assert rolls_out(episode, model)


def test_a_graph_with_more_nodes_than_are_looked_at_is_no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "_MAX_NODES", 50)

    assert not rolls_out(episode, policy())


def test_gradients_are_the_same_and_nothing_is_kept_of_a_graph_that_was_looked_at() -> None:
    model = policy()
    torch.manual_seed(0)
    episode(model)
    before = [one.grad for one in model.parameters()]
    model.zero_grad()
    torch.manual_seed(0)

    assert rolls_out(episode, model)
    for one, other in zip(model.parameters(), before, strict=True):
        assert one.grad is not None
        assert other is not None
        assert torch.equal(one.grad, other)
