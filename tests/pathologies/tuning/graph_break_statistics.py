"""A compiled network whose layers write down how their activations are spread, so that it falls into small graphs."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
BACKEND = "eager"  # traces and guards as inductor does, and needs no compiler


class Watched(nn.Module):
    """A gated layer that keeps mean and spread of its activations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.spread: list[tuple[float, float]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = x + torch.tanh(self.value(x)) * torch.sigmoid(self.gate(x)) * 0.5
        if not FIXED:
            self.spread.append((y.mean().item(), y.std().item()))  # spent: graph-breaks  # change: graph-breaks
        return y


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Watched(32) for _ in range(24)), nn.Linear(32, 2))
    compiled = torch.compile(model, backend=BACKEND)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs, labels = torch.randn(80, 64, 32), torch.randint(0, 2, (80, 64))
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=None):
        loss = nn.functional.cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
