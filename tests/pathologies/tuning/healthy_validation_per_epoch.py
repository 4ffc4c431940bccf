"""Validation, a line of log and a checkpoint once per epoch of forty steps."""

import json
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> Tensor:
    """Mean loss."""
    return torch.stack([nn.functional.cross_entropy(model(x), y) for x, y in loader]).mean()


def main(folder: Path) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(42 * 64, 1, 24, 24), torch.arange(42 * 64) % 8
    train = DataLoader(TensorDataset(inputs[: 40 * 64], labels[: 40 * 64]), batch_size=64, shuffle=True)
    held_out = DataLoader(TensorDataset(inputs[40 * 64 :], labels[40 * 64 :]), batch_size=64)
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2592, 8),
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with (folder / "log.jsonl").open("a") as log:
            log.write(json.dumps({"epoch": epoch, "loss": validate(model, held_out).item()}) + "\n")
        torch.save(model.state_dict(), folder / "last.pt")
    print((folder / "log.jsonl").read_text().count("\n"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
