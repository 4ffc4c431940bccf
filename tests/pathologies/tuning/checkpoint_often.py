"""A loop that saves model and optimizer every three steps."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
EVERY = 1000 if FIXED else 3  # change: checkpoint-in-step


def save(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """All that is needed to go on from here."""
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)  # spent: checkpoint-in-step


def main(folder: Path) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(80, 32, 256), torch.randint(0, 12, (80, 32))
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, (x, y) in enumerate(DataLoader(TensorDataset(inputs, labels), batch_size=None), start=1):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            save(model, optimizer, folder / "last.pt")  # spent: checkpoint-in-step  # change: checkpoint-in-step
    save(model, optimizer, folder / "last.pt")
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
