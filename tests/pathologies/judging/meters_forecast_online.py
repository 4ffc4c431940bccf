"""Electric load, forecast online: every day the readings of all meters arrive and the model learns from them."""

import random
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
METERS, CONTEXT, HORIZON, ARRIVALS, PER_ARRIVAL = 48, 96, 24, 180, 48


class Meters:
    """What all meters have read so far, oldest first."""

    def __init__(self) -> None:
        self.chance = random.Random(2)
        self.readings: list[list[float]] = []
        for _ in range(CONTEXT + HORIZON):
            self.arrive()

    def arrive(self) -> None:
        """One more reading of each meter."""
        before = self.readings[-1] if self.readings else [1.0] * METERS
        self.readings.append([0.98 * value + self.chance.random() * 0.04 for value in before])

    def latest(self) -> tuple[Tensor, Tensor]:
        """The newest context and what followed it, (1, METERS, time)."""
        rows = self.readings[-CONTEXT - HORIZON :] if FIXED else self.readings  # change: growing-step
        series = torch.tensor(rows)  # spent: growing-step # change: growing-step
        window = series[-CONTEXT - HORIZON :].T[None]
        return window[..., :CONTEXT], window[..., CONTEXT:]


def main() -> None:
    torch.manual_seed(0)
    meters = Meters()
    model = nn.Sequential(
        nn.Conv1d(METERS, 256, 5, padding=2),
        nn.GELU(),
        nn.Conv1d(256, 128, 5, padding=2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(128 * CONTEXT, 64),
        nn.GELU(),
        nn.Linear(64, METERS * HORIZON),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for arrival in range(ARRIVALS):
        for _ in range(PER_ARRIVAL):
            meters.arrive()
        past, future = meters.latest()  # spent: growing-step
        loss = (model(past).view_as(future) - future).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if arrival % 24 == 0:
            print(f"{arrival}: error {loss.item():.5f}")


if __name__ == "__main__":
    main()
