"""A training step that runs the model a second time only to show its accuracy."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv


class Net(nn.Module):
    """Convolutions over 28 x 28."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32 * 14 * 14, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def main() -> None:
    torch.manual_seed(0)
    pictures, labels = torch.randn(70 * 32, 1, 28, 28), torch.arange(70 * 32) % 10
    model = Net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    hits = torch.zeros(())
    for x, y in DataLoader(TensorDataset(pictures, labels), batch_size=32):
        scores = model(x)
        loss = nn.functional.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guesses = scores if FIXED else model(x)  # spent: unexpected-call-count  # change: unexpected-call-count
        hits += (guesses.detach().argmax(1) == y).float().mean()
    print(f"accuracy {hits.item() / 70:.3f}")


if __name__ == "__main__":
    main()
