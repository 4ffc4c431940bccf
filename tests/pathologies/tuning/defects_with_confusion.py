"""Classifies defects of a surface per pixel, and counts the confusions of classes while it trains."""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    classes: int = 5
    size: int = 64
    batch: int = 8
    width: int = 12
    steps: int = 260


class Surfaces:
    """Pictures with stripes of defects."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def draw(self) -> tuple[Tensor, Tensor]:
        config = self.config
        stripe = torch.randint(config.classes, (config.batch, 1, config.size // 8))
        label = stripe.repeat_interleave(8, 2).expand(-1, config.size, -1)
        images = label.unsqueeze(1) / config.classes + 0.3 * torch.randn(config.batch, 1, config.size, config.size)
        return images, label


class Confusion:
    """How often each class was taken for each other one."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = torch.zeros(classes, classes, dtype=torch.long)
        self.table = [[0] * classes for _ in range(classes)]

    def update(self, predicted: Tensor, label: Tensor) -> None:
        if FIXED:
            pair = (label * self.classes + predicted).flatten()
            self.counts += torch.bincount(pair, minlength=self.classes**2).view(self.classes, self.classes)
        else:
            for truth, found in zip(
                label.flatten().tolist(), predicted.flatten().tolist(), strict=True
            ):  # spent: python-bound # change: python-bound
                self.table[truth][found] += 1  # spent: python-bound # change: python-bound

    def intersection_over_union(self) -> Tensor:
        counts = self.counts if FIXED else torch.tensor(self.table)
        hit = counts.diagonal()
        return hit / (counts.sum(0) + counts.sum(1) - hit).clamp(min=1)


class Segmenter(nn.Module):
    """Convolutions at a quarter of the resolution."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, config.width, 4, stride=4)
        self.wide = nn.Conv2d(config.width, config.width, 3, padding=2, dilation=2)
        self.leave = nn.Conv2d(config.width, config.classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        coarse = self.leave(self.wide(self.enter(images).relu()).relu())
        return F.interpolate(coarse, scale_factor=4.0, mode="nearest")


class Meters:
    """All metrics of the training."""

    def __init__(self, config: Config) -> None:
        self.confusion, self.loss = Confusion(config.classes), torch.zeros(())

    @torch.no_grad()
    def update(self, scores: Tensor, label: Tensor, loss: Tensor) -> None:
        self.loss += loss
        self.confusion.update(scores.argmax(1), label)  # spent: python-bound


class Trainer:
    """Steps, and meters that are updated in each."""

    def __init__(self, config: Config) -> None:
        self.config, self.surfaces, self.model, self.meters = (
            config,
            Surfaces(config),
            Segmenter(config),
            Meters(config),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def fit(self) -> Meters:
        for _ in range(self.config.steps):
            images, label = self.surfaces.draw()
            scores = self.model(images)
            loss = F.cross_entropy(scores, label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.meters.update(scores, label, loss)  # spent: python-bound
        return self.meters


def main() -> None:
    torch.manual_seed(0)
    config = Config()
    meters = Trainer(config).fit()
    union = meters.confusion.intersection_over_union().mean().item()
    print(f"loss {meters.loss.item() / config.steps:.4f}, mean intersection over union {union:.3f}")


if __name__ == "__main__":
    main()
