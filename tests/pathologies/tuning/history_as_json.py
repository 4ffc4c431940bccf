"""A loop that writes its whole history to a JSON file after every step."""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
EVERY = 50


def write(history: list[dict[str, object]], path: Path) -> None:
    """Write it so that a crash loses nothing."""
    with path.open("w") as file:
        json.dump(history, file, indent=1)  # spent: logging-in-step
        file.flush()
        os.fsync(file.fileno())


def main(folder: Path) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(80, 64, 96), torch.randint(0, 6, (80, 64))
    model = nn.Sequential(nn.Linear(96, 768), nn.ReLU(), nn.Linear(768, 640), nn.ReLU(), nn.Linear(640, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: list[dict[str, object]] = []
    for step, (x, y) in enumerate(DataLoader(TensorDataset(inputs, labels), batch_size=None)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates = [group["lr"] for group in optimizer.param_groups]
        history.append({"step": step, "rates": rates, "layers": [{"kind": str(m), "trains": True} for m in model]})
        if not FIXED or step % EVERY == EVERY - 1:  # change: logging-in-step
            write(history, folder / "history.json")  # spent: logging-in-step  # change: logging-in-step
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
