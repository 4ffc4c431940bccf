"""A wide network whose activation and norm are written out op by op."""

import math
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH = 48


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    if FIXED:
        return nn.functional.gelu(x, approximate="tanh")
    inner = math.sqrt(2 / math.pi) * (
        x + 0.044715 * x.pow(3)
    )  # spent: unfused-elementwise  # change: unfused-elementwise
    return 0.5 * x * (1 + torch.tanh(inner))  # spent: unfused-elementwise  # change: unfused-elementwise


class Mixer(nn.Module):
    """A residual layer over (batch, patches, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(gelu(self.widen(x)))


torch.manual_seed(0)
model = nn.Sequential(Mixer(), Mixer())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(torch.randn(60 * 8, 256, WIDTH), batch_size=8):
    loss = nn.functional.mse_loss(model(x), x.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
