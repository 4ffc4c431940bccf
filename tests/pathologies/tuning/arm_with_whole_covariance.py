"""A policy of a robot's arm is cloned from demonstrations; its actions are a Gaussian with one scale per joint."""

import sys

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

FIXED = "--fixed" in sys.argv
STEPS, BATCH, SENSORS, JOINTS, WIDTH = 100, 512, 32, 14, 96


class Policy(nn.Module):
    """Actions given sensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SENSORS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2 * JOINTS))

    def forward(self, sensors: Tensor) -> Distribution:
        """The distribution of the actions."""
        mean, log_scale = self.body(sensors).chunk(2, dim=-1)
        scale = log_scale.clamp(-3, 1).exp()
        if FIXED:
            return Independent(Normal(mean, scale), 1)
        return MultivariateNormal(
            mean, torch.diag_embed(scale**2)
        )  # spent: diagonal-as-dense # change: diagonal-as-dense


def main() -> None:
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, fused=True)
    sensors, actions = torch.randn(20, BATCH, SENSORS), torch.randn(20, BATCH, JOINTS)
    for step in range(STEPS):
        given = policy(sensors[step % 20])
        loss = -given.log_prob(actions[step % 20]).mean()  # spent: diagonal-as-dense
        optimizer.zero_grad()
        loss.backward()  # spent: diagonal-as-dense
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
