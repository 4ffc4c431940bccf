"""Continual learning: all earlier exemplars are compared with the batch, which grows."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


class Exemplars:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.features: list[Tensor] = []

    def store(self, z: Tensor) -> None:
        self.features.append(z.detach())  # change: growing-step
        if self.limit:
            self.features = self.features[-self.limit :]

    def novelty(self, z: Tensor) -> Tensor:
        if not self.features:
            return z.sum() * 0
        bank = torch.cat(self.features)  # spent: growing-step # change: growing-step
        return torch.cdist(z, bank).amin(1).mean()  # spent: growing-step


class Learner:
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 24))
        self.memory = Exemplars(8 if FIXED else 0)  # change: growing-step
        self.opt = torch.optim.SGD(self.net.parameters(), 1e-3)

    def observe(self, x: Tensor) -> Tensor:
        z = self.net(x)
        loss = z.square().mean() - 0.01 * self.memory.novelty(z)
        self.opt.zero_grad()
        loss.backward()  # spent: growing-step
        self.opt.step()
        self.memory.store(z)  # change: growing-step
        return loss


def main() -> None:
    torch.manual_seed(0)
    learner = Learner()
    for t in range(400):
        loss = learner.observe(torch.randn(48, 32) + t / 400)
    print(loss.item())


if __name__ == "__main__":
    main()
