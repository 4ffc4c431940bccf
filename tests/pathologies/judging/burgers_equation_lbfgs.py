"""A physics-informed network for Burgers' equation, trained with L-BFGS on collocation points."""

import math
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, POINTS, BORDER, VISCOSITY = 44, 30, 40, 0.01 / math.pi


class Solution(nn.Module):
    """u(t, x)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(2, 32), nn.Tanh()]
        for _ in range(3):
            layers += [nn.Linear(32, 32), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(32, 1))

    def forward(self, point: Tensor) -> Tensor:
        return self.net(point)


def residual(u: Solution, points: Tensor) -> Tensor:
    """By how much the equation is missed, at one point or at many."""
    points = points.requires_grad_()
    value = u(points)
    slope = torch.autograd.grad(value.sum(), points, create_graph=True)[0]
    bend = torch.autograd.grad(slope[..., 1].sum(), points, create_graph=True)[0]
    return slope[..., 0] + value[..., 0] * slope[..., 1] - VISCOSITY * bend[..., 1]


def physics(u: Solution, points: Tensor) -> Tensor:
    """Mean squared residual."""
    if FIXED:
        return residual(u, points).square().mean()
    total = torch.zeros(())
    for point in points:  # spent: loop-over-samples # change: loop-over-samples
        missed = residual(u, point.clone())  # spent: loop-over-samples # change: loop-over-samples
        total = total + missed.square()  # spent: loop-over-samples # change: loop-over-samples
    return total / len(points)


def main() -> None:
    torch.manual_seed(0)
    u = Solution()
    points = torch.rand(POINTS, 2) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0])
    x = torch.linspace(-1, 1, BORDER)
    start = torch.stack([torch.zeros(BORDER), x], dim=1)
    optimizer = torch.optim.LBFGS(u.parameters(), lr=0.2, max_iter=3, history_size=10)

    def closure() -> Tensor:
        optimizer.zero_grad()
        initial = (u(start).squeeze(1) + torch.sin(math.pi * x)).square().mean()
        loss = initial + physics(u, points.detach())  # spent: loop-over-samples
        loss.backward()  # spent: loop-over-samples
        return loss

    for step in range(STEPS):
        loss = optimizer.step(closure)  # spent: loop-over-samples
        if step % 11 == 0:
            print(f"{step}: {loss.item():.5f}")
    print(f"last {loss.item():.5f}")


if __name__ == "__main__":
    main()
