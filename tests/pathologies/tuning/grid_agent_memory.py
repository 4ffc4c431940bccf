"""A Q-learning agent in gymnasium's CartPole, with a memory of transitions in tensors."""

import sys
from dataclasses import dataclass

import gymnasium
import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    stacked: int = 256
    moves_per_step: int = 4
    steps: int = 700
    batch: int = 128
    capacity: int = 4000
    discount: float = 0.98


class Memory:
    """What was seen, done and earned; the oldest is forgotten when it is full."""

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity, self.size = capacity, 0
        self.rows = torch.zeros(capacity if FIXED else 0, 2 * width + 3)
        self.width = width

    def __len__(self) -> int:
        return min(self.size, self.capacity)

    def add(self, seen: Tensor, action: int, reward: float, following: Tensor, *, over: bool) -> None:
        row = torch.cat([seen, following, torch.tensor([float(action), reward, float(over)])])
        if FIXED:
            self.rows[self.size % self.capacity] = row
        else:
            self.rows = torch.cat([self.rows, row.unsqueeze(0)])[
                -self.capacity :
            ]  # spent: growing-step # change: growing-step
        self.size += 1

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows = self.rows[torch.randint(len(self), (count,))]
        seen, following, rest = rows.split([self.width, self.width, 3], 1)
        return seen, following, rest[:, 0].long(), rest[:, 1], rest[:, 2]


class Lift(gymnasium.ObservationWrapper):
    """Turns the four numbers into many, by random frequencies."""

    def __init__(self, env: gymnasium.Env, width: int) -> None:
        super().__init__(env)
        self.directions = torch.randn(4, width)

    def observation(self, observation) -> Tensor:
        return torch.as_tensor(observation).matmul(self.directions).cos()


class Agent:
    """Acts, remembers, learns."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.env = Lift(gymnasium.make("CartPole-v1"), config.stacked)
        self.net = nn.Sequential(
            nn.Linear(config.stacked, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02)
        self.memory = Memory(config.capacity, config.stacked)
        self.seen = self.env.reset(seed=0)[0]
        self.earned = 0.0

    def move(self) -> None:
        """One move, mostly the best one."""
        with torch.no_grad():
            action = int(torch.randint(2, ())) if torch.rand(()) < 0.1 else int(self.net(self.seen).argmax())
        following, reward, terminated, truncated, _ = self.env.step(action)
        self.memory.add(self.seen, action, float(reward), following, over=terminated)  # spent: growing-step
        self.earned += float(reward)
        self.seen = self.env.reset()[0] if terminated or truncated else following

    def learn(self) -> float:
        """One update by remembered transitions."""
        seen, following, action, reward, over = self.memory.draw(self.config.batch)
        with torch.no_grad():
            target = reward + self.config.discount * (1 - over) * self.net(following).amax(1)
        value = self.net(seen).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self) -> list[float]:
        losses = []
        for _ in range(self.config.steps):
            for _ in range(self.config.moves_per_step):
                self.move()  # spent: growing-step
            losses.append(self.learn())
        return losses


def main() -> None:
    torch.manual_seed(0)
    agent = Agent(Config())
    losses = agent.run()
    print(f"loss {losses[-1]:.4f}, {len(agent.memory)} transitions, {agent.earned:.0f} earned")


if __name__ == "__main__":
    main()
