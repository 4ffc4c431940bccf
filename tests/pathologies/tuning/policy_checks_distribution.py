"""A policy with a distribution per joint, as reinforcement learning builds them in every step."""

import sys

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

FIXED = "--fixed" in sys.argv
STEPS, WORLDS, STATE, JOINTS, CHOICES = 80, 512, 24, 12, 16


class Policy(nn.Module):
    """A distribution over choices for each joint."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE, 64), nn.Tanh(), nn.Linear(64, JOINTS * CHOICES))

    def forward(self, state: Tensor) -> list[Categorical]:
        scores = self.net(state).unflatten(1, (JOINTS, CHOICES))
        probabilities = scores.softmax(-1)
        return [
            Categorical(probabilities[:, joint], validate_args=not FIXED)  # spent: sync-in-step # change: sync-in-step
            for joint in range(JOINTS)
        ]


def main() -> None:
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(STEPS):
        state = torch.randn(WORLDS, STATE)
        joints = policy(state)
        choices = [joint.sample() for joint in joints]
        reward = -torch.stack(choices).float().var(0)
        chances = torch.stack(
            [joint.log_prob(choice) for joint, choice in zip(joints, choices, strict=True)]  # spent: sync-in-step
        )
        loss = -(chances.sum(0) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
