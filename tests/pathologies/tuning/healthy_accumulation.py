"""Gradients of four small batches make one step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PARTS = 4


def main() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(60 * PARTS, 16, 400), torch.randint(0, 10, (60 * PARTS, 16))
    model = nn.Sequential(nn.Linear(400, 1280), nn.ReLU(), nn.Linear(1280, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(DataLoader(TensorDataset(inputs, labels), batch_size=None), start=1):
        loss = nn.functional.cross_entropy(model(x), y) / PARTS
        loss.backward()
        if number % PARTS == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {loss.item() * PARTS:.4f}")


if __name__ == "__main__":
    main()
