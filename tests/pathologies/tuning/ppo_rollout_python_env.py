"""Proximal policy optimization: a rollout in some simulated carts, then 16 updates on it."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
CARTS, HORIZON, UPDATES, ROUNDS = 64, 12, 16, 6


class Carts:
    """Carts that are pushed along a line; the state is place and speed."""

    def __init__(self) -> None:
        self.state = torch.zeros(CARTS, 2)

    def step(self, push: Tensor) -> tuple[Tensor, Tensor]:
        """Move all carts by one tick; returns their states and rewards."""
        if FIXED:
            speed = (self.state[:, 1] + 0.1 * push).clamp(-1, 1)
            self.state = torch.stack([(self.state[:, 0] + speed).clamp(-5, 5), speed], dim=1)
            return self.state.clone(), -self.state[:, 0].abs()
        rewards = []
        for cart in range(CARTS):  # spent: rare-steps # change: rare-steps
            place, speed = self.state[cart].tolist()  # spent: rare-steps # change: rare-steps
            speed = min(max(speed + 0.1 * float(push[cart]), -1.0), 1.0)  # spent: rare-steps # change: rare-steps
            place = min(max(place + speed, -5.0), 5.0)
            self.state[cart] = torch.tensor([place, speed])  # spent: rare-steps # change: rare-steps
            rewards.append(-abs(place))
        return self.state.clone(), torch.tensor(rewards)


def rollout(policy: nn.Module, carts: Carts) -> tuple[Tensor, Tensor, Tensor]:
    """Play HORIZON ticks: states, pushes and rewards."""
    states, pushes, rewards = [], [], []
    state = carts.state
    with torch.no_grad():
        for _ in range(HORIZON):
            push = policy(state).squeeze(1) + torch.randn(CARTS)
            states.append(state)
            pushes.append(push)
            state, reward = carts.step(push)  # spent: rare-steps # change: rare-steps
            rewards.append(reward)
    return torch.cat(states), torch.cat(pushes), torch.cat(rewards)


def main() -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    carts = Carts()
    for update in range(ROUNDS * UPDATES):
        if update % UPDATES == 0:
            states, pushes, rewards = rollout(policy, carts)  # spent: rare-steps # change: rare-steps
            advantage = (rewards - rewards.mean()) / rewards.std()
            before = -(pushes - policy(states).squeeze(1).detach()).square() / 2
        ratio = (-(pushes - policy(states).squeeze(1)).square() / 2 - before).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"reward {rewards.mean():.3f}")


if __name__ == "__main__":
    main()
