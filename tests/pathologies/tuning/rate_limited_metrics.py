"""Training that sends its loss to a service which takes a hundred messages per second."""

import sys
import time

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH = 90, 256


class Service:
    """A client that keeps the pause that the service asks for."""

    PAUSE_S = 0.01

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.waiting: list[float] = []

    def send(self, value: float) -> None:
        """Send a value as soon as the service takes it."""
        if FIXED:
            self.waiting.append(value)
            return
        time.sleep(self.PAUSE_S)  # spent: waiting-in-step # change: waiting-in-step
        self.sent.append(value)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    service = Service()
    for _ in range(STEPS):
        x = torch.randn(BATCH, 64)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        service.send(loss.item())  # spent: waiting-in-step # change: waiting-in-step
    print(f"loss {loss.item():.4f}, {len(service.sent)} sent")


if __name__ == "__main__":
    main()
