"""Q-learning from a store of transitions that an older policy has recorded."""

import random
import sys
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, STATE, ACTIONS, KEPT, GAMMA = 220, 256, 8, 4, 800_000, 0.98


class Transition(NamedTuple):
    """One move and what came of it."""

    state: Tensor
    action: int
    reward: float
    after: Tensor


def play() -> list[Transition]:
    """The moves of the older policy."""
    states = torch.randn(2000, STATE).unbind()
    chance = random.Random(21)
    return [
        Transition(states[move % 2000], chance.randrange(ACTIONS), chance.random(), states[(move + 1) % 2000])
        for move in range(KEPT)
    ]


class Memory:
    """The newest transitions; older ones are forgotten."""

    def __init__(self, transitions: list[Transition]) -> None:
        self.kept = transitions[-KEPT:] if FIXED else deque(transitions, maxlen=KEPT)  # change: cpu-preprocessing

    def sample(self) -> list[Transition]:
        """Transitions drawn at random."""
        return random.sample(self.kept, BATCH)  # spent: cpu-preprocessing # change: cpu-preprocessing


def batch_of(transitions: list[Transition]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    states, actions, rewards, after = zip(*transitions, strict=True)
    return torch.stack(states), torch.tensor(actions), torch.tensor(rewards), torch.stack(after)


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    memory = Memory(play())
    values = nn.Sequential(nn.Linear(STATE, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, ACTIONS))
    optimizer = torch.optim.AdamW(values.parameters(), lr=1e-3, fused=True)
    for step in range(STEPS):
        states, actions, rewards, after = batch_of(memory.sample())  # spent: cpu-preprocessing
        with torch.no_grad():
            target = rewards + GAMMA * values(after).amax(1)
        loss = nn.functional.smooth_l1_loss(values(states).gather(1, actions[:, None]).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 60 == 0:
            print(f"{step}: {loss.item():.4f}")
    print(f"last {loss.item():.4f}")


if __name__ == "__main__":
    main()
