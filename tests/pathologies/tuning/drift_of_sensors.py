"""Online learning on a stream of sensors; a detector says when the stream has drifted."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    sensors: int = 48
    batch: int = 320
    steps: int = 200
    width: int = 640
    threshold: float = 0.3


class Stream:
    """Readings whose mean wanders."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rule = torch.randn(config.sensors)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self.config.steps):
            x = torch.randn(self.config.batch, self.config.sensors) + 0.003 * step
            yield x, (x @ self.rule > 0).float()


class DriftDetector:
    """Compares a batch's mean with that of all that came before, in units of the spread."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.readings: list[Tensor] = []
        self.count, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())
        self.alarms = 0

    def reference(self) -> tuple[Tensor, Tensor]:
        """The mean and the spread of what has been seen."""
        if FIXED:
            mean = self.total / self.count
            return mean, (self.squares / self.count - mean.square()).sqrt()
        seen = torch.cat(self.readings)  # spent: growing-step # change: growing-step
        return seen.mean(0), seen.std(0)  # spent: growing-step # change: growing-step

    def add(self, x: Tensor) -> None:
        if FIXED:
            self.count, self.total, self.squares = (
                self.count + len(x),
                self.total + x.sum(0),
                self.squares + x.square().sum(0),
            )
        else:
            self.readings.append(x)  # change: growing-step

    def look(self, x: Tensor) -> bool:
        """Whether this batch is unlike the earlier ones; it is then one of them."""
        drifted = False
        if self.readings or self.count:
            mean, spread = self.reference()  # spent: growing-step
            drifted = bool(((x.mean(0) - mean) / spread).abs().mean() > self.threshold)
        self.add(x)
        self.alarms += drifted
        return drifted


class Learner:
    """A classifier that learns faster for a while after an alarm."""

    def __init__(self, config: Config) -> None:
        self.net = nn.Sequential(
            nn.Linear(config.sensors, config.width), nn.ReLU(),
            nn.Linear(config.width, config.width), nn.ReLU(),
            nn.Linear(config.width, 1),
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.detector = DriftDetector(config.threshold)

    def set_rate(self, *, drifted: bool) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 if drifted else 0.05

    def learn(self, x: Tensor, y: Tensor) -> float:
        self.set_rate(drifted=self.detector.look(x))  # spent: growing-step
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(x).squeeze(1), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main() -> None:
    torch.manual_seed(0)
    config = Config()
    learner = Learner(config)
    losses = [learner.learn(x, y) for x, y in Stream(config)]  # spent: growing-step
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, {learner.detector.alarms} alarms")


if __name__ == "__main__":
    main()
