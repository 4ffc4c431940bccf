"""An exponential moving average of the weights, updated parameter by parameter in Python."""

import copy
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
DECAY = 0.999


class Block(nn.Module):
    """A residual block of small layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.down, self.up = nn.Linear(width, width // 2), nn.Linear(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.down(self.norm(x)).relu())


@torch.no_grad()
def average(kept: nn.Module, model: nn.Module) -> None:
    """Move the kept weights a little towards the model's."""
    if FIXED:
        torch._foreach_lerp_(list(kept.parameters()), list(model.parameters()), 1 - DECAY)
        return
    for old, new in zip(
        kept.parameters(), model.parameters(), strict=True
    ):  # spent: many-small-ops  # change: many-small-ops
        old.data = old.data * DECAY + new.data.detach().clone() * (1 - DECAY)  # spent: many-small-ops


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), *(Block(64) for _ in range(40)), nn.Linear(64, 4))
kept = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
inputs, labels = torch.randn(90 * 16, 32), torch.arange(90 * 16) % 4
for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=16):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average(kept, model)
print(f"loss {loss.item():.4f}")
