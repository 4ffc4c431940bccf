"""Anomaly detection, switched on to find a NaN and forgotten."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
if not FIXED:
    torch.autograd.set_detect_anomaly(True)  # change: anomaly-detection


class Tower(nn.Module):
    """Residual layers with a norm each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x)).tanh()  # spent: anomaly-detection
        return x.mean(1)


def main() -> None:
    torch.manual_seed(0)
    model = Tower(96, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    data = TensorDataset(torch.randn(80, 32, 96), torch.randn(80, 32))
    for x, y in DataLoader(data, batch_size=None):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # spent: anomaly-detection
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
