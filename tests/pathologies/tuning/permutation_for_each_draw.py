"""Off-policy updates that permute the whole replay memory to draw one batch of it."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, SIZE, BATCH, STATE = 150, 500_000, 128, 17


class Memory:
    def __init__(self) -> None:
        self.states, self.rewards = torch.randn(SIZE, STATE), torch.randn(SIZE)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        if FIXED:
            drawn = torch.randint(0, SIZE, (count,))
            return self.states[drawn], self.rewards[drawn]
        drawn = torch.randperm(SIZE)[:count]  # spent: dominating-op  # change: dominating-op
        return self.states[drawn], self.rewards[drawn]


def main() -> None:
    torch.manual_seed(0)
    memory = Memory()
    critic = nn.Sequential(nn.Linear(STATE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(critic.parameters(), lr=1e-3)
    for _ in range(STEPS):
        states, rewards = memory.draw(BATCH)
        loss = nn.functional.mse_loss(critic(states).squeeze(1), rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
