"""Patches of satellite images, kept in memory as batches; gradients of four batches make one update."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PATCHES, BATCH, EPOCHS, TOGETHER, CROPS = 1600, 16, 2, 4, 9


def main() -> None:
    torch.manual_seed(0)
    patches, crops = torch.randn(PATCHES, 4, 32, 32), torch.arange(PATCHES) % CROPS
    batches = list(DataLoader(TensorDataset(patches, crops), batch_size=BATCH, shuffle=True))
    model = nn.Sequential(
        nn.Conv2d(4, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, stride=2, padding=1),
        nn.GroupNorm(4, 48),
        nn.ReLU(),
        nn.Conv2d(48, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CROPS),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(batches, start=1):
            loss = nn.functional.cross_entropy(model(x), y) / TOGETHER
            loss.backward()
            if number % TOGETHER == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: {TOGETHER * loss.item():.4f}")


if __name__ == "__main__":
    main()
