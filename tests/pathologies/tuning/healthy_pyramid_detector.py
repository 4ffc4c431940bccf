"""A detector whose one head sees three levels of a pyramid; hard negatives are chosen, gradients clipped."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SIDE, BATCH, STEPS = 64, 4, 80
LEVELS = (16, 8, 4)


def halve(inner: int, outer: int) -> nn.Sequential:
    """Half the side."""
    return nn.Sequential(nn.Conv2d(inner, outer, 3, stride=2, padding=1), nn.ReLU())


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(halve(3, 24), halve(24, 48))
        self.down = nn.ModuleList([halve(48, 48), halve(48, 48)])
        self.head = nn.Sequential(nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 5, 1))

    def forward(self, images: Tensor) -> Tensor:
        """A score and a box per cell of the three levels, (images, cells, 5)."""
        levels = [self.stem(images)]
        for down in self.down:
            levels.append(down(levels[-1]))
        return torch.cat([self.head(level).flatten(2) for level in levels], dim=2).mT


def loss_of(found: Tensor, objects: Tensor, boxes: Tensor) -> Tensor:
    """Scores of the objects and of three hard negatives for each, and boxes of the objects."""
    scores = F.binary_cross_entropy_with_logits(found[..., 0], objects, reduction="none")
    hard = scores.masked_fill(objects.bool(), 0).topk(3 * 6, dim=1).values
    near = F.smooth_l1_loss(found[..., 1:], boxes, reduction="none").sum(2)
    return ((scores + near) * objects).sum() / objects.sum() + hard.mean()


def main() -> None:
    torch.manual_seed(0)
    cells = sum(side * side for side in LEVELS)
    pictures = torch.randn(STEPS * BATCH, 3, SIDE, SIDE)
    objects = torch.zeros(len(pictures), cells).scatter_(1, torch.randint(0, cells, (len(pictures), 6)), 1.0)
    boxes = torch.rand(len(pictures), cells, 4)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    for images, *targets in DataLoader(TensorDataset(pictures, objects, boxes), BATCH, shuffle=True):
        loss = loss_of(model(images), *targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        warm_up.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
