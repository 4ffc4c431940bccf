"""Reinforcement learning on a batch of simulated worlds, all stepped at once by tensor ops."""

import torch
from torch import nn

STEPS, WORLDS, SIZE = 60, 2048, 24


def main() -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(SIZE, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    for _step in range(STEPS):
        state = torch.randn(WORLDS, SIZE)
        scores = policy(state).log_softmax(-1)
        action = (scores - torch.empty_like(scores).exponential_().log()).argmax(-1, keepdim=True)
        reward = state.gather(1, action).squeeze(1) - state.square().mean(-1)
        loss = -(scores.gather(1, action).squeeze(1) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
