"""A force field learned from orbits: each step integrates it over 16 ticks, and each tick needs the one before."""

import torch
from torch import Tensor, nn

STEPS, BATCH, BODIES, WIDTH, TICKS, SPAN = 90, 256, 8, 192, 16, 0.05


def integrate(force: nn.Module, position: Tensor, speed: Tensor) -> Tensor:
    """The positions at all ticks, by the leapfrog method."""
    positions, pull = [], force(position)
    for _ in range(TICKS):
        speed = speed + 0.5 * SPAN * pull
        position = position + SPAN * speed
        pull = force(position)
        speed = speed + 0.5 * SPAN * pull
        positions.append(position)
    return torch.stack(positions)


def true_force(position: Tensor) -> Tensor:
    """Towards the origin and away from the mean of the bodies."""
    mean = position.view(-1, BODIES, 3).mean(1, keepdim=True).expand(-1, BODIES, 3).flatten(1)
    return -position + 0.2 * (position - mean)


def main() -> None:
    torch.manual_seed(0)
    force = nn.Sequential(
        nn.Linear(3 * BODIES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3 * BODIES)
    )
    optimizer = torch.optim.AdamW(force.parameters(), lr=1e-3, fused=True)
    position, speed = torch.randn(BATCH * 6, 3 * BODIES), 0.3 * torch.randn(BATCH * 6, 3 * BODIES)
    with torch.no_grad():
        orbits = integrate(true_force, position, speed)
    for step in range(STEPS):
        rows = torch.randint(len(position), (BATCH,))
        loss = (integrate(force, position[rows], speed[rows]) - orbits[:, rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.5f}")
    print(f"last {loss.item():.5f}")


if __name__ == "__main__":
    main()
