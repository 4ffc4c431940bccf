"""A neural ordinary differential equation that learns the motion of coupled pendulums."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
if not FIXED:
    torch.set_default_dtype(torch.float64)  # change: float64-in-step
STEPS, BATCH, STATE, WIDTH, TICKS, SPAN = 50, 128, 32, 256, 10, 0.1


class Field(nn.Module):
    """The derivative of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, STATE)
        )

    def forward(self, state: Tensor) -> Tensor:
        return self.net(state)  # spent: float64-in-step


def integrate(field: Field, state: Tensor) -> Tensor:
    """The states at all ticks, by the classical Runge-Kutta method."""
    states = []
    for _ in range(TICKS):
        k1 = field(state)  # spent: float64-in-step
        k2 = field(state + 0.5 * SPAN * k1)  # spent: float64-in-step
        k3 = field(state + 0.5 * SPAN * k2)  # spent: float64-in-step
        k4 = field(state + SPAN * k3)  # spent: float64-in-step
        state = state + SPAN / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(state)
    return torch.stack(states)


@torch.no_grad()
def pendulums(start: Tensor) -> Tensor:
    """The true motion: angles in the first half of the state, speeds in the second."""
    angle, speed = start.chunk(2, dim=1)
    states = []
    for _ in range(TICKS):
        for _ in range(4):
            pull = angle.roll(1, 1) - 2 * angle + angle.roll(-1, 1)
            speed = speed + SPAN / 4 * (pull - angle.sin())
            angle = angle + SPAN / 4 * speed
        states.append(torch.cat([angle, speed], dim=1))
    return torch.stack(states)


def main() -> None:
    torch.manual_seed(0)
    field = Field()
    optimizer = torch.optim.AdamW(field.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(4)
    for step in range(STEPS):
        start = torch.randn(BATCH, STATE, generator=generator)
        loss = (integrate(field, start) - pendulums(start)).square().mean()  # spent: float64-in-step
        optimizer.zero_grad()
        loss.backward()  # spent: float64-in-step
        optimizer.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
