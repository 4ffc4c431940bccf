"""A policy over pushes that depend on each other: reinforcement learning builds its distribution in every step."""

import sys

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

FIXED = "--fixed" in sys.argv
CHECK = not FIXED  # change: sync-in-step
STEPS, WORLDS, STATE, JOINTS = 80, 512, 24, 12


class Policy(nn.Module):
    """A distribution of the pushes of all joints."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE, 64), nn.Tanh(), nn.Linear(64, JOINTS + JOINTS * JOINTS))

    def forward(self, state: Tensor) -> MultivariateNormal:
        mean, mixed = self.net(state).split([JOINTS, JOINTS * JOINTS], dim=1)
        factor = mixed.unflatten(1, (JOINTS, JOINTS)).tril(-1) + torch.eye(JOINTS)
        return MultivariateNormal(
            mean, scale_tril=factor, validate_args=CHECK
        )  # spent: sync-in-step # change: sync-in-step


def main() -> None:
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-4)
    for _ in range(STEPS):
        state = torch.randn(WORLDS, STATE)
        pushes = policy(state)
        push = pushes.sample()
        reward = -(push - state[:, :JOINTS]).square().mean(1)
        loss = -(pushes.log_prob(push) * (reward - reward.mean())).mean()  # spent: sync-in-step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
