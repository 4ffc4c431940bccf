"""A classifier that reads its accuracy back after every batch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv


def train(epochs: int) -> float:
    """Train; the accuracy of the last epoch."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(1024, 784), torch.arange(1024) % 10
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=64)
    model = nn.Sequential(nn.Linear(784, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _epoch in range(epochs):
        right = 0
        seen = torch.zeros((), dtype=torch.long)
        for x, y in loader:
            scores = model(x)
            loss = nn.functional.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits = (scores.argmax(1) == y).sum()
            if FIXED:
                seen += hits
            else:
                right += hits.item()  # spent: sync-in-step  # change: sync-in-step
    return (seen.item() if FIXED else right) / len(inputs)


if __name__ == "__main__":
    print(f"accuracy {train(6):.3f}")
