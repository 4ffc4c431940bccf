"""REINFORCE with a baseline: a boat learns to dock, and each move of an episode keeps a graph for the update."""

import math
import random
import sys

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

FIXED = "--fixed" in sys.argv
EPISODES, MOVES, DISCOUNT = 150, 60, 0.97


class Harbour:
    """A boat with a place, a speed and a heading in a current; it earns by being near the pier."""

    def reset(self) -> list[float]:
        """Put the boat somewhere outside."""
        self.x, self.y = random.uniform(-2, 2), random.uniform(1, 3)
        self.speed, self.heading, self.moves = 0.0, random.uniform(-math.pi, math.pi), 0
        return self.seen()

    def seen(self) -> list[float]:
        """What the boat knows of itself."""
        heading = (math.sin(self.heading), math.cos(self.heading))
        return [self.x, self.y, self.speed, *heading, math.hypot(self.x, self.y)]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """Turn left or right, speed up, slow down, or wait."""
        self.heading += (0.0, 0.3, -0.3, 0.0, 0.0)[action]
        self.speed = min(max(self.speed + (0.0, 0.0, 0.0, 0.05, -0.05)[action], 0.0), 0.3)
        self.x += self.speed * math.cos(self.heading) + 0.01 * math.sin(self.y)
        self.y += self.speed * math.sin(self.heading)
        self.moves += 1
        return self.seen(), -math.hypot(self.x, self.y), self.moves == MOVES


class Helm(nn.Module):
    """Scores of the five actions, and what the place is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.scores, self.worth = nn.Linear(64, 5), nn.Linear(64, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(seen)  # spent: rollout-with-graph
        return self.scores(hidden), self.worth(hidden).squeeze(-1)  # spent: rollout-with-graph


def returns_of(rewards: list[float]) -> Tensor:
    """What each move of an episode earned from there on."""
    returns, value = [], 0.0
    for reward in reversed(rewards):
        value = reward + DISCOUNT * value
        returns.append(value)
    found = torch.tensor(returns[::-1])
    return (found - found.mean()) / (found.std() + 1e-6)


def play(harbour: Harbour, helm: Helm) -> tuple[Tensor, float]:
    """An episode's loss, and what it earned."""
    chances, worths, entropies, places, actions, rewards = [], [], [], [], [], []
    seen, over = harbour.reset(), False
    while not over:
        place = torch.tensor(seen).unsqueeze(0)
        if FIXED:
            with torch.no_grad():
                scores, _ = helm(place)
            action = Categorical(logits=scores).sample()
            places.append(place)
            actions.append(action)
        else:
            scores, worth = helm(place)  # spent: rollout-with-graph # change: rollout-with-graph
            policy = Categorical(logits=scores)
            action = policy.sample()
            chances.append(policy.log_prob(action))  # spent: rollout-with-graph # change: rollout-with-graph
            entropies.append(policy.entropy())  # spent: rollout-with-graph # change: rollout-with-graph
            worths.append(worth)
        seen, reward, over = harbour.step(int(action))
        rewards.append(reward)
    returns = returns_of(rewards)
    if FIXED:
        scores, worth = helm(torch.cat(places))
        policy = Categorical(logits=scores)
        gain = -policy.log_prob(torch.cat(actions)) * (returns - worth.detach())
        return (gain + (worth - returns).square() - 0.01 * policy.entropy()).sum(), sum(rewards)
    losses = []
    for chance, worth, entropy, earned in zip(chances, worths, entropies, returns, strict=True):
        advantage = earned - worth.detach()  # spent: rollout-with-graph # change: rollout-with-graph
        loss = -chance * advantage + (worth - earned).square() - 0.01 * entropy  # spent: rollout-with-graph
        losses.append(loss)
    return torch.cat(losses).sum(), sum(rewards)


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    Distribution.set_default_validate_args(False)
    harbour, helm = Harbour(), Helm()
    optimizer = torch.optim.RMSprop(helm.parameters(), lr=1e-3)
    for _ in range(EPISODES):
        loss, earned = play(harbour, helm)  # spent: rollout-with-graph
        optimizer.zero_grad()
        loss.backward()  # spent: rollout-with-graph
        optimizer.step()
    print(f"earned {earned:.3f}")


if __name__ == "__main__":
    main()
