"""An actor and a learner: the learner takes new trajectories from files that an actor's thread writes."""

import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    folder: Path
    states: int = 32
    moves: int = 256
    steps: int = 180
    poll_seconds: float = 0.001 if FIXED else 0.03  # change: waiting-in-step


class Actor:
    """Writes a trajectory, then the next one as soon as that is taken."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(1)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        for number in range(self.config.steps):
            state = torch.randn(self.config.moves, self.config.states, generator=self.generator)
            action = torch.randint(4, (self.config.moves,), generator=self.generator)
            reward = state[:, 0] * (action == 0) + state[:, 1] * (action == 1)
            time.sleep(0.012)  # the simulator, which is another machine
            hidden = self.config.folder / f"{number}.part"
            torch.save({"state": state, "action": action, "reward": reward}, hidden)
            written = hidden.rename(self.config.folder / f"{number}.pt")
            while written.exists():
                time.sleep(0.001)


class Inbox:
    """Waits for the next trajectory."""

    def __init__(self, folder: Path, poll_seconds: float) -> None:
        self.folder, self.poll_seconds, self.next = folder, poll_seconds, 0

    def take(self) -> dict[str, Tensor]:
        path = self.folder / f"{self.next}.pt"
        while not path.exists():
            time.sleep(self.poll_seconds)  # spent: waiting-in-step # change: waiting-in-step
        trajectory = torch.load(path)
        path.unlink()
        self.next += 1
        return trajectory


class Learner:
    """A policy and a critic."""

    def __init__(self, config: Config) -> None:
        self.body = nn.Sequential(nn.Linear(config.states, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
        self.policy, self.critic = nn.Linear(512, 4), nn.Linear(512, 1)
        parameters = [*self.body.parameters(), *self.policy.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.02)

    def learn(self, trajectory: dict[str, Tensor]) -> Tensor:
        hidden = self.body(trajectory["state"])
        value = self.critic(hidden).squeeze(1)
        advantage = trajectory["reward"] - value
        chosen = self.policy(hidden).log_softmax(1).gather(1, trajectory["action"].unsqueeze(1)).squeeze(1)
        loss = advantage.square().mean() - (chosen * advantage.detach()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def run(config: Config) -> Tensor:
    """All steps of the learner."""
    actor, learner = Actor(config), Learner(config)
    inbox = Inbox(config.folder, config.poll_seconds)  # change: waiting-in-step
    actor.thread.start()
    for _ in range(config.steps):
        loss = learner.learn(inbox.take())  # spent: waiting-in-step
    return loss


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loss = run(Config(Path(folder)))
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
