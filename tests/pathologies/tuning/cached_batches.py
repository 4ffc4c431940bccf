"""The batches are collated once and kept, since the data is small; the weights' average is kept too."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
EPOCHS, BATCHES, BATCH = 4, 25, 32


@torch.no_grad()
def follow(averages: list[Tensor], weights: list[Tensor]) -> None:
    """Move the averages towards the weights."""
    if FIXED:
        torch._foreach_lerp_(averages, weights, 0.01)
        return
    for average, weight in zip(averages, weights, strict=True):  # spent: many-small-ops # change: many-small-ops
        average.copy_(0.99 * average + 0.01 * weight)  # spent: many-small-ops # change: many-small-ops


def main() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(32, 1))
    weights = list(model.parameters())
    averages = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=0.01)
    batches = list(DataLoader(TensorDataset(torch.randn(BATCHES * BATCH, 32)), batch_size=BATCH))
    for _ in range(EPOCHS):
        for (x,) in batches:
            loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            follow(averages, weights)  # spent: many-small-ops
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
