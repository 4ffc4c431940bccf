"""Denoising diffusion by hand: a small UNet, a cosine schedule, samples drawn once at the end."""

import math

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LEVELS = 200


def angles(t: Tensor, width: int) -> Tensor:
    """Sines and cosines of the level at several frequencies."""
    frequencies = torch.exp(torch.arange(width // 2) * (-math.log(10_000) / (width // 2)))
    phase = t[:, None] * frequencies
    return torch.cat([phase.sin(), phase.cos()], 1)


class Block(nn.Module):
    """Two convolutions with the level added between them."""

    def __init__(self, inputs: int, outputs: int, level: int = 64) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.level = nn.Linear(level, outputs)
        self.second = nn.Sequential(nn.GroupNorm(4, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        return self.second(self.first(x) + self.level(level)[:, :, None, None]) + self.skip(x)


class UNet(nn.Module):
    """Down once, up once."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.level = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.high = Block(width, width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.low = Block(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge = Block(2 * width, width)
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        level = self.level(angles(t, 64))
        high = self.high(self.enter(x), level)
        low = self.low(self.down(high), level)
        return self.leave(self.merge(torch.cat([high, self.up(low)], 1), level))


def schedule() -> Tensor:
    """Share of the signal that is left at each level (Nichol and Dhariwal, 2021)."""
    phase = torch.linspace(0, 1, LEVELS + 1)
    left = torch.cos((phase + 0.008) / 1.008 * math.pi / 2) ** 2
    return (left / left[0])[1:].clamp(min=1e-4)


@torch.inference_mode()
def sample(model: nn.Module, left: Tensor, count: int, stride: int = 20) -> Tensor:
    """Draw pictures without noise on the way (DDIM)."""
    x = torch.randn(count, 1, 28, 28)
    levels = list(range(LEVELS - 1, -1, -stride))
    for level, following in zip(levels, [*levels[1:], None], strict=True):
        noise = model(x, torch.full((count,), float(level)))
        clean = ((x - (1 - left[level]).sqrt() * noise) / left[level].sqrt()).clamp(-1, 1)
        x = clean if following is None else left[following].sqrt() * clean + (1 - left[following]).sqrt() * noise
    return x


def main() -> None:
    torch.manual_seed(0)
    left = schedule()
    loader = DataLoader(TensorDataset(torch.rand(1200, 1, 28, 28) * 2 - 1), batch_size=24, shuffle=True)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    for (clean,) in loader:
        t = torch.randint(0, LEVELS, (len(clean),))
        noise = torch.randn_like(clean)
        share = left[t][:, None, None, None]
        predicted = model(share.sqrt() * clean + (1 - share).sqrt() * noise, t.float())
        loss = nn.functional.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drawn = sample(model.eval(), left, 8)
    print(f"loss {loss.item():.3f}, mean of the samples {drawn.mean().item():.3f}")


if __name__ == "__main__":
    main()
