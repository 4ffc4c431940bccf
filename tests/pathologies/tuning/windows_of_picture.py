"""A small transformer with shifted windows classifies the frames of a camera, one after the other."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    side: int = 32
    window: int = 16
    width: int = 32
    heads: int = 2
    blocks: int = 4
    frames: int = 300


def cut(x: Tensor, window: int) -> Tensor:
    """The windows of a map, as rows of tokens."""
    batch, side, _, width = x.shape
    parts = x.view(batch, side // window, window, side // window, window, width)
    return parts.transpose(2, 3).reshape(-1, window * window, width)


def join(x: Tensor, window: int, side: int) -> Tensor:
    """The map of the windows."""
    parts = x.view(-1, side // window, side // window, window, window, x.shape[-1])
    return parts.transpose(2, 3).reshape(-1, side, side, x.shape[-1])


def regions_mask(side: int, window: int, shift: int) -> Tensor:
    """Which tokens of a shifted window may see each other: those that were neighbours before the shift."""
    region = torch.zeros(1, side, side, 1)
    bands = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for row, rows in enumerate(bands):
        for column, columns in enumerate(bands):
            region[:, rows, columns] = 3 * row + column  # spent: repeated-work
    region = cut(region, window).squeeze(2)
    apart = region.unsqueeze(1) - region.unsqueeze(2)  # spent: repeated-work
    place = torch.cartesian_prod(torch.arange(window), torch.arange(window)).float()
    near = torch.exp(-torch.cdist(place, place, p=1.0) / window).log()  # spent: repeated-work
    return torch.where(apart == 0, near, torch.tensor(-100.0))  # spent: repeated-work


class WindowBlock(nn.Module):
    """Attention within windows, which every other block shifts, and a feed-forward layer."""

    def __init__(self, config: Config, shift: int) -> None:
        super().__init__()
        self.config, self.shift = config, shift
        self.before, self.between = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.project, self.merge = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.feed = nn.Sequential(
            nn.Linear(config.width, 2 * config.width), nn.GELU(), nn.Linear(2 * config.width, config.width)
        )
        if FIXED:
            self.register_buffer("kept", self.mask())

    def mask(self) -> Tensor:
        return regions_mask(self.config.side, self.config.window, max(self.shift, 1))  # spent: repeated-work

    def attend(self, x: Tensor) -> Tensor:
        windows = cut(x, self.config.window)
        mask = self.kept if FIXED else self.mask()  # spent: repeated-work # change: repeated-work
        mask = mask.repeat(len(x), 1, 1).unsqueeze(1)
        query, key, value = self.project(windows).unflatten(2, (3, self.config.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return join(self.merge(mixed.transpose(1, 2).flatten(2)), self.config.window, self.config.side)

    def forward(self, x: Tensor) -> Tensor:
        moved = self.before(x).roll((-self.shift, -self.shift), (1, 2))
        x = x + self.attend(moved).roll((self.shift, self.shift), (1, 2))  # spent: repeated-work
        return x + self.feed(self.between(x))


class Windows(nn.Module):
    """Patches, blocks, and a linear layer on the mean."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, config.width, 2, 2)
        self.blocks = nn.Sequential(
            *[WindowBlock(config, (number % 2) * config.window // 2) for number in range(config.blocks)]
        )
        self.score = nn.Linear(config.width, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.score(self.blocks(self.patch(images).permute(0, 2, 3, 1)).mean((1, 2)))  # spent: repeated-work


class Camera:
    """Frames that are brighter or darker."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(self.config.frames):
            yield torch.randn(1, 3, 2 * self.config.side, 2 * self.config.side) * (1 + number % 5)


@torch.inference_mode()
def watch(camera: Camera, model: nn.Module) -> list[int]:
    """How often each class was seen."""
    seen = [0] * 5
    for frame in camera:
        seen[int(model(frame).argmax())] += 1  # spent: repeated-work
    return seen


def main() -> None:
    torch.manual_seed(0)
    config = Config()
    print("frames per class", *watch(Camera(config), Windows(config).eval()))


if __name__ == "__main__":
    main()
