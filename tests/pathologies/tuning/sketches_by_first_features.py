"""Sketches get their colors; the loss compares features of the first blocks of a fixed network."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, SIDE, WIDTH, BLOCKS, USED = 60, 8, 48, 24, 6, 3


class Block(nn.Module):
    """A convolution of the fixed network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.conv(x), 0.1)  # spent: unread-results


class Features(nn.Module):
    """The features of all blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH if at else 3) for at in range(BLOCKS))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for block in self.blocks[:USED] if FIXED else self.blocks:  # change: unread-results
            x = block(x)  # spent: unread-results # change: unread-results
            features.append(x)
        return features


class Painter(nn.Module):
    """Colors of a sketch, and how far they are from the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.colors = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.GELU(), nn.Conv2d(32, 3, 3, padding=1))
        self.features = Features()

    def forward(self, sketch: Tensor, picture: Tensor) -> Tensor:
        """The loss."""
        painted = self.colors(sketch)
        with torch.no_grad():
            wanted = self.features(picture)[:USED]  # change: unread-results
        found = self.features(painted)[:USED]  # change: unread-results
        return torch.stack([F.mse_loss(one, other) for one, other in zip(found, wanted, strict=True)]).sum()


def main() -> None:
    torch.manual_seed(0)
    painter = Painter()
    optimizer = torch.optim.AdamW(painter.colors.parameters(), lr=1e-3, fused=True)
    for _ in range(STEPS):
        picture = torch.rand(BATCH, 3, SIDE, SIDE)
        loss = painter(picture.mean(1, keepdim=True), picture)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
