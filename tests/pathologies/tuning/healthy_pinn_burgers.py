"""A physics-informed network for Burgers' equation, with fresh points in every step and a report every 50 steps."""

import math

import torch
from torch import Tensor, nn

STEPS, INSIDE, BORDER, VISCOSITY = 150, 2000, 300, 0.01 / math.pi


def residual(net: nn.Module, points: Tensor) -> Tensor:
    """By how much the equation is missed at each point (place, time)."""
    points.requires_grad_()
    u = net(points)
    (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    u_x, u_t = first[:, 0], first[:, 1]
    (second,) = torch.autograd.grad(u_x.sum(), points, create_graph=True)
    return u_t + u.squeeze(1) * u_x - VISCOSITY * second[:, 0]


def main() -> None:
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.995)
    for step in range(1, STEPS + 1):
        inside = torch.rand(INSIDE, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
        start = torch.rand(BORDER, 1) * 2 - 1
        first_heat = net(torch.cat([start, torch.zeros_like(start)], dim=1))
        side = torch.cat([torch.randint(2, (BORDER, 1)) * 2.0 - 1, torch.rand(BORDER, 1)], dim=1)
        equation = residual(net, inside).square().mean()
        border = (first_heat + torch.sin(math.pi * start)).square().mean() + net(side).square().mean()
        loss = equation + border
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"{step}: equation {equation.item():.4f}, border {border.item():.4f}")


if __name__ == "__main__":
    main()
