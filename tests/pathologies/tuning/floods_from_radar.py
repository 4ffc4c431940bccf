"""The extent of floods in radar images: an encoder's maps are resized to the image before a head of two classes."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, SIZE, WIDTH = 60, 4, 128, 96


def block(before: int, after: int) -> nn.Sequential:
    """A convolution that halves the image."""
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class Extent(nn.Module):
    """Land and water for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(block(2, 24), block(24, 48), block(48, WIDTH))
        self.context = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
        )
        self.head = nn.Conv2d(WIDTH, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of both classes in the size of the images."""
        maps, size = self.context(self.encoder(images)), images.shape[-2:]
        if FIXED:
            return F.interpolate(self.head(maps), size, mode="bilinear")
        maps = F.interpolate(maps, size, mode="bilinear")  # spent: resize-order # change: resize-order
        return self.head(maps)  # spent: resize-order # change: resize-order


def main() -> None:
    torch.manual_seed(0)
    model = Extent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images = torch.randn(10, BATCH, 2, SIZE, SIZE)
    water = (images[:, :, 0] + images[:, :, 1] > 0.5).long()
    for step in range(STEPS):
        loss = F.cross_entropy(model(images[step % 10]), water[step % 10])
        optimizer.zero_grad()
        loss.backward()  # spent: resize-order
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
