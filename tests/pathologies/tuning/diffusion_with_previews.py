"""A diffusion model of points on rings, trained with previews of what it would sample."""

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    levels: int = 200
    batch: int = 1024
    width: int = 256
    steps: int = 120
    preview_every: int = 60 if FIXED else 15  # change: rare-steps
    preview_points: int = 512


class Noise:
    """How much noise there is at each level."""

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self.beta = torch.linspace(1e-4, 0.04, levels)
        self.alpha = 1 - self.beta
        self.kept = self.alpha.cumprod(0)

    def add(self, x: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        kept = self.kept[level].unsqueeze(1)
        return kept.sqrt() * x + (1 - kept).sqrt() * noise

    def remove(self, x: Tensor, noise: Tensor, level: int) -> Tensor:
        mean = (x - self.beta[level] / (1 - self.kept[level]).sqrt() * noise) / self.alpha[level].sqrt()
        return mean + self.beta[level].sqrt() * torch.randn_like(x) if level else mean


class Denoiser(nn.Module):
    """Tells the noise from the point and the level."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.levels = nn.Embedding(config.levels, config.width)
        self.enter = nn.Linear(2, config.width)
        self.body = nn.Sequential(
            nn.SiLU(),
            nn.Linear(config.width, config.width),
            nn.SiLU(),
            nn.Linear(config.width, config.width),
            nn.SiLU(),
        )
        self.leave = nn.Linear(config.width, 2)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        return self.leave(self.body(self.enter(x) + self.levels(level)))


class Previewer:
    """Samples points, and says how many of them lie on a ring."""

    def __init__(self, noise: Noise, points: int) -> None:
        self.noise, self.points = noise, points

    @torch.no_grad()
    def sample(self, denoiser: nn.Module) -> Tensor:
        x = torch.randn(self.points, 2)
        for level in reversed(range(self.noise.levels)):
            predicted = denoiser(x, torch.full((self.points,), level))  # spent: rare-steps
            x = self.noise.remove(x, predicted, level)  # spent: rare-steps
        return x

    def report(self, step: int, denoiser: nn.Module) -> None:
        radius = self.sample(denoiser).norm(dim=1)  # spent: rare-steps
        near = (torch.minimum((radius - 0.5).abs(), (radius - 1.5).abs()) < 0.15).float().mean()
        print(f"step {step}: {100 * near.item():.0f} % of the points are near a ring")


def rings(points: int) -> Tensor:
    """Points of two rings."""
    angle = 2 * math.pi * torch.rand(points)
    radius = 0.5 + torch.randint(2, (points,)) + 0.03 * torch.randn(points)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def main() -> None:
    torch.manual_seed(0)
    config = Config()
    noise, denoiser = Noise(config.levels), Denoiser(config)
    previewer = Previewer(noise, config.preview_points)
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=2e-3, fused=True)
    for step in range(1, config.steps + 1):
        x = rings(config.batch)
        level, added = torch.randint(config.levels, (config.batch,)), torch.randn_like(x)
        loss = nn.functional.mse_loss(denoiser(noise.add(x, added, level), level), added)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config.preview_every == 0:  # change: rare-steps
            previewer.report(step, denoiser)  # spent: rare-steps # change: rare-steps
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
