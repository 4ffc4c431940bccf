"""Short epochs over a labelled and an unlabelled set, each with a loader of its own."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
EPOCHS, BATCHES, BATCH, WIDTH = 8, 10, 16, 128


class Signals(Dataset[Tensor]):
    """Noisy signals."""

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> Tensor:
        wave = torch.linspace(0, index % 7, WIDTH).sin()
        return wave + self.noise * torch.randn(WIDTH)


def main() -> None:
    torch.manual_seed(0)
    labelled = DataLoader(Signals(0.1), BATCH, num_workers=1, persistent_workers=FIXED)  # change: input-bound
    unlabelled = DataLoader(Signals(0.5), BATCH, num_workers=1, persistent_workers=FIXED)  # change: input-bound
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        for clean, noisy in zip(labelled, unlabelled, strict=True):  # spent: input-bound
            loss = (model(noisy) - clean).square().mean() + 0.1 * (model(clean) - clean).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
