"""A detector of boxes in aerial pictures: each cell of a grid answers for nine anchors."""

import math
import sys
from itertools import pairwise

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, SIDE, STRIDE, OBJECTS = 100, 2, 160, 8, 4
SIZES, RATIOS = (16, 32, 64), (0.5, 1.0, 2.0)


def make_anchors(cells: int) -> Tensor:
    """Corners of all anchors, (cells * cells * 9, 4)."""
    corners = []
    for row in range(cells):  # spent: repeated-work
        for column in range(cells):  # spent: repeated-work
            x, y = (column + 0.5) * STRIDE, (row + 0.5) * STRIDE  # spent: repeated-work
            for size in SIZES:  # spent: repeated-work
                for ratio in RATIOS:  # spent: repeated-work
                    w, h = size * math.sqrt(ratio) / 2, size / math.sqrt(ratio) / 2  # spent: repeated-work
                    corners.append([x - w, y - h, x + w, y + h])  # spent: repeated-work
    return torch.tensor(corners)  # spent: repeated-work


def overlap(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Intersection over union, (batch, anchors, boxes)."""
    low = torch.maximum(anchors[None, :, None, :2], boxes[:, None, :, :2])
    high = torch.minimum(anchors[None, :, None, 2:], boxes[:, None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = (anchors[:, 2:] - anchors[:, :2]).prod(-1)[None, :, None]
    return common / (area + (boxes[..., 2:] - boxes[..., :2]).prod(-1)[:, None] - common)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 48)
        self.trunk = nn.Sequential(
            *[
                layer
                for before, after in pairwise(widths)
                for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU())
            ]
        )
        self.objectness = nn.Conv2d(48, 9, 3, padding=1)
        self.register_buffer("anchors", make_anchors(SIDE // STRIDE))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(pictures)
        scores = self.objectness(features).permute(0, 2, 3, 1).flatten(1)
        if FIXED:
            return scores, self.anchors
        return scores, make_anchors(features.shape[-1])  # spent: repeated-work # change: repeated-work


def main() -> None:
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(STEPS):
        pictures = torch.randn(BATCH, 3, SIDE, SIDE)
        corner = torch.rand(BATCH, OBJECTS, 2) * (SIDE - 64)
        boxes = torch.cat([corner, corner + 20 + 40 * torch.rand(BATCH, OBJECTS, 2)], dim=2)
        scores, anchors = model(pictures)  # spent: repeated-work
        with torch.no_grad():
            matched = (overlap(anchors, boxes).amax(2) > 0.4).float()
        loss = nn.functional.binary_cross_entropy_with_logits(scores, matched)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
