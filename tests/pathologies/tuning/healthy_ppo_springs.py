"""Proximal policy optimization of carts on springs: a simulator in numpy, whose rollouts take most of the loop."""

import numpy as np
import torch
from torch import Tensor, nn

CARTS, HORIZON, PASSES, ROUNDS, TICKS = 256, 24, 3, 60, 12


class Springs:
    """Carts, each on a spring that is stiff: a push is simulated in small ticks."""

    def __init__(self) -> None:
        self.place, self.speed = np.zeros((CARTS, 16)), np.zeros((CARTS, 16))

    def reset(self) -> np.ndarray:
        """Put all carts where they began."""
        self.place[:], self.speed[:] = 0.1, 0
        return self.place.copy()

    def step(self, push: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places of the carts after a push, and the rewards."""
        for _ in range(TICKS):
            pull = np.diff(self.place, axis=1, prepend=0.0)
            self.speed += 0.01 * (push[:, None] - 40 * pull - 0.3 * self.speed * np.abs(self.speed))
            self.place += 0.01 * self.speed
        return self.place.copy(), -np.abs(self.place[:, -1])


def rollout(policy: nn.Module, springs: Springs) -> tuple[Tensor, Tensor, Tensor]:
    """Play HORIZON pushes: places, pushes and rewards."""
    places, pushes, rewards = [], [], []
    place = springs.reset()
    with torch.no_grad():
        for _ in range(HORIZON):
            seen = torch.from_numpy(place).float()
            push = policy(seen).squeeze(1) + 0.3 * torch.randn(CARTS)
            place, reward = springs.step(push.numpy())
            places.append(seen)
            pushes.append(push)
            rewards.append(torch.from_numpy(reward).float())
    return torch.cat(places), torch.cat(pushes), torch.cat(rewards)


def main() -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, fused=True)
    springs = Springs()
    for _ in range(ROUNDS):
        places, pushes, rewards = rollout(policy, springs)
        advantage = (rewards - rewards.mean()) / rewards.std()
        before = -(pushes - policy(places).squeeze(1).detach()).square() / 2
        for _ in range(PASSES):
            for chosen in torch.randperm(len(places)).split(1024):
                ratio = (-(pushes[chosen] - policy(places[chosen]).squeeze(1)).square() / 2 - before[chosen]).exp()
                loss = -torch.min(ratio * advantage[chosen], ratio.clamp(0.8, 1.2) * advantage[chosen]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    print(f"reward {rewards.mean():.3f}")


if __name__ == "__main__":
    main()
