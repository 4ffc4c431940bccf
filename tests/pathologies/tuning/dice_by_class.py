"""Segmentation of street scenes with a dice loss that is summed class by class."""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
CLASSES, SIDE, BATCH, STEPS = 40, 32, 4, 150


class UNet(nn.Module):
    """Two levels down and two up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.up, self.last = nn.Conv2d(48, 16, 3, padding=1), nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x).relu()
        coarse = self.second(F.max_pool2d(fine, 2)).relu()
        both = torch.cat([fine, F.interpolate(coarse, scale_factor=2)], dim=1)
        return self.last(self.up(both).relu())


class DiceLoss(nn.Module):
    """One minus the mean overlap of the classes."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        shares = logits.softmax(1)
        if FIXED:
            truth = F.one_hot(target, CLASSES).movedim(3, 1)
            overlap = torch.where(truth.bool(), shares, 0).sum((0, 2, 3))
            size = shares.sum((0, 2, 3)) + truth.sum((0, 2, 3))
            return 1 - ((2 * overlap + 1) / (size + 1)).mean()
        scores = []
        for number in range(CLASSES):  # spent: many-small-ops # change: many-small-ops
            share = shares[:, number]  # spent: many-small-ops # change: many-small-ops
            truth = (target == number).float()  # spent: many-small-ops # change: many-small-ops
            overlap = (share * truth).sum()  # spent: many-small-ops # change: many-small-ops
            size = share.sum() + truth.sum()  # spent: many-small-ops # change: many-small-ops
            scores.append((2 * overlap + 1) / (size + 1))  # spent: many-small-ops # change: many-small-ops
        return 1 - torch.stack(scores).mean()


def scenes() -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of pictures and the class of each pixel."""
    pictures, classes = torch.randn(64, 3, SIDE, SIDE), torch.randint(0, CLASSES, (64, SIDE, SIDE))
    for _ in range(STEPS):
        chosen = torch.randint(0, 64, (BATCH,))
        yield pictures[chosen], classes[chosen]


def train() -> float:
    """Train, and give the last loss."""
    torch.manual_seed(0)
    model, dice = UNet().to(memory_format=torch.channels_last), DiceLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for pictures, target in scenes():
        optimizer.zero_grad(set_to_none=True)
        logits = model(pictures)
        loss = F.cross_entropy(logits, target) + dice(logits, target)
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(f"loss {train():.4f}")
