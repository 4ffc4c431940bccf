"""Gradients of a generator in its critic's step are distinguished from those that an optimizer uses later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

import perfkit
from perfkit.run.reading import read_run
from perfkit.run.records import UnusedGradients


def recorded(folder: Path, step: Callable[[], None], steps: int = 24) -> tuple[UnusedGradients, ...]:
    with perfkit.profile(folder, quiet=True):
        for _ in range(steps):
            step()
    rank = read_run(folder).ranks[0].rank
    assert rank is not None
    assert rank.errors == ()
    assert not _global_optimizer_post_hooks
    return rank.unused_gradients


class Gan:
    """A generator, and a critic that is updated ``rounds`` times for each update of it."""

    def __init__(self, rounds: int = 1, *, detach: bool = False) -> None:
        self.generator, self.critic = nn.Linear(4, 3), nn.Linear(3, 1)
        self.of_generator = torch.optim.SGD(self.generator.parameters(), lr=0.01)
        self.of_critic = torch.optim.SGD(self.critic.parameters(), lr=0.01)
        self.rounds, self.detach = rounds, detach

    def samples(self) -> torch.Tensor:
        return self.generator(torch.ones(2, 4))  # the samples

    def step(self) -> None:
        for _ in range(self.rounds):
            self.of_critic.zero_grad()
            fake = self.samples().detach() if self.detach else self.samples()
            (self.critic(fake) - self.critic(torch.ones(2, 3))).mean().backward()
            self.of_critic.step()
        self.of_generator.zero_grad()
        (-self.critic(self.samples())).mean().backward()
        self.of_generator.step()


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_generator_in_the_graph_of_its_critics_loss_is_found_where_it_is_called(tmp_path: Path, rounds: int) -> None:
    [found] = recorded(tmp_path / "run", Gan(rounds).step)

    assert (found.module, found.elements, found.cleared, found.passes_on) == ("Linear", 15, True, False)
    assert found.called_at is not None
    assert "# the samples" in Path(__file__).read_text().splitlines()[(found.called_at.line or 0) - 1]


def test_a_generator_whose_samples_are_detached_is_not_nor_a_critic_that_passes_gradients_on(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", Gan(detach=True).step) == ()


def test_optimizers_that_share_a_backward_use_its_gradients(tmp_path: Path) -> None:
    body, head = nn.Linear(4, 3), nn.Linear(3, 1)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (body, head)]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        head(body(torch.ones(2, 4))).mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    assert recorded(tmp_path / "run", step) == ()


def test_gradients_that_are_accumulated_for_a_rarer_step_are_used(tmp_path: Path) -> None:
    body, head = nn.Linear(4, 3), nn.Linear(3, 1)
    rare, often = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (body, head))
    steps = iter(range(100))

    def step() -> None:
        often.zero_grad()
        head(body(torch.ones(2, 4))).mean().backward()
        often.step()
        if next(steps) % 4 == 3:
            rare.step()
            rare.zero_grad()

    assert recorded(tmp_path / "run", step) == ()
