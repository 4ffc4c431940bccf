"""EEG classification: a learned temporal filter bank, channel by channel, then an MLP."""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
CHANNELS = 48


class FilterBank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, 1, 15) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        if FIXED:
            return F.conv1d(x, self.weight, padding=7, groups=CHANNELS)
        out = []
        for c in range(CHANNELS):  # spent: many-small-ops # change: many-small-ops
            y = F.conv1d(
                x[:, c : c + 1], self.weight[c : c + 1], padding=7
            )  # spent: many-small-ops # change: many-small-ops
            out.append(y)
        return torch.cat(out, 1)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bank = FilterBank()
        self.head = nn.Sequential(
            nn.AvgPool1d(8), nn.Flatten(), nn.Linear(CHANNELS * 16, 128), nn.ELU(), nn.Linear(128, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bank(x).square())


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    total = torch.zeros(())
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(total) / len(loader)


def main() -> None:
    torch.manual_seed(0)
    X, Y = torch.randn(1600, CHANNELS, 128), torch.randint(0, 4, (1600,))
    loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    for epoch in range(6):
        print(epoch, train(model, loader, optimizer))


if __name__ == "__main__":
    main()
