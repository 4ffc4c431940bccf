"""Q-learning from a replay buffer of transitions."""

import random
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, STATE, ACTIONS, SIZE = 80, 256, 24, 6, 4000


class Replay:
    """Transitions: state, action, reward, next state."""

    def __init__(self) -> None:
        self.states, self.after = torch.randn(SIZE, STATE), torch.randn(SIZE, STATE)
        self.actions, self.rewards = torch.randint(ACTIONS, (SIZE,)), torch.randn(SIZE)
        self.rows = [
            (self.states[row].tolist(), int(self.actions[row]), float(self.rewards[row]), self.after[row].tolist())
            for row in range(SIZE)
        ]

    def sample(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A batch of transitions, drawn at random."""
        if FIXED:
            drawn = torch.randint(SIZE, (BATCH,))
            return self.states[drawn], self.actions[drawn], self.rewards[drawn], self.after[drawn]
        states, actions, rewards, after = zip(*random.sample(self.rows, BATCH), strict=True)  # spent: cpu-preprocessing
        return (
            torch.tensor(states),  # spent: cpu-preprocessing # change: cpu-preprocessing
            torch.tensor(actions),
            torch.tensor(rewards),
            torch.tensor(after),  # spent: cpu-preprocessing # change: cpu-preprocessing
        )


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    values = nn.Sequential(nn.Linear(STATE, 128), nn.ReLU(), nn.Linear(128, ACTIONS))
    optimizer = torch.optim.SGD(values.parameters(), lr=0.01)
    replay = Replay()
    for _ in range(STEPS):
        states, actions, rewards, after = replay.sample()  # spent: cpu-preprocessing # change: cpu-preprocessing
        with torch.no_grad():
            target = rewards + 0.99 * values(after).amax(1)
        loss = (values(states).gather(1, actions[:, None]).squeeze(1) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
