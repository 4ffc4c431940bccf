"""Energies of clusters of atoms from their distances, which go through Gaussians first."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, PAIRS, CENTERS, WIDTH, REACH = 90, 4000, 64, 96, 8.0


class Gaussians(nn.Module):
    """How near a distance is to each of some centers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(0, REACH, CENTERS))
        self.sharpness = 0.7 * (CENTERS / REACH) ** 2 / 4

    def forward(self, distances: Tensor) -> Tensor:
        return torch.exp(-self.sharpness * (distances[:, None] - self.centers).square())  # change: subnormal-numbers


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near = Gaussians()
        self.first, self.second, self.last = nn.Linear(CENTERS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, distances: Tensor) -> Tensor:
        hidden = self.first(self.near(distances)).tanh()  # spent: subnormal-numbers # change: subnormal-numbers
        return self.last(self.second(hidden).tanh()).squeeze(-1)


def main() -> None:
    torch.manual_seed(0)
    if FIXED:
        torch.set_flush_denormal(True)
    model = Energy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        distances = REACH * torch.rand(PAIRS)
        loss = nn.functional.mse_loss(model(distances), 1 / (1 + distances))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
