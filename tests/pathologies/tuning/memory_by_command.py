"""Segmentation; the used memory is logged in every step by a system command."""

import subprocess
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


def used_memory() -> int:
    out = subprocess.run(["free", "-m"], capture_output=True, text=True).stdout  # spent: waiting-in-step
    return int(out.splitlines()[1].split()[2])


class Logger:
    def __init__(self, every: int) -> None:
        self.every = every
        self.rows: list[tuple[int, Tensor, int]] = []

    def on_step(self, step: int, loss: Tensor) -> None:
        if step % self.every == 0:
            self.rows.append((step, loss.detach(), used_memory()))  # change: waiting-in-step


def main() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 1)
    )
    opt = torch.optim.SGD(net.parameters(), 0.05)
    logger = Logger(100 if FIXED else 1)  # change: waiting-in-step
    for step in range(350):
        x, y = torch.randn(4, 3, 32, 32), torch.randint(2, (4, 32, 32))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        logger.on_step(step, loss)  # change: waiting-in-step
    print(len(logger.rows))


if __name__ == "__main__":
    main()
