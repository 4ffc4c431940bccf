"""A generator of letters; every few steps its samples are compared with all real ones by a fixed network's features."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, NOISE, SIDE, REAL, EVERY = 240, 32, 16, 16, 600, 30


class Distance:
    """The distance of two sets of pictures, between the means and the variances of their features."""

    def __init__(self, real: Tensor) -> None:
        self.real = real
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten()
        ).eval()
        self.known = self.moments(real) if FIXED else None

    @torch.no_grad()
    def moments(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.cat(
            [self.net(part) for part in pictures.split(BATCH)]
        )  # spent: rare-steps # change: rare-steps
        return features.mean(0), features.var(0)

    def __call__(self, made: Tensor) -> float:
        mean, variance = self.known or self.moments(self.real)  # spent: rare-steps # change: rare-steps
        own_mean, own_variance = self.moments(made)
        return float((mean - own_mean).norm() + (variance - own_variance).norm())


def main() -> None:
    torch.manual_seed(0)
    real = (torch.rand(REAL, 1, SIDE, SIDE) > 0.7).float()
    generator = nn.Sequential(nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, SIDE * SIDE), nn.Sigmoid())
    distance = Distance(real)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    for step in range(STEPS):
        picked = real[torch.randint(REAL, (BATCH,))].flatten(1)
        made = generator(torch.randn(BATCH, NOISE))
        loss = F.mse_loss(made.mean(0), picked.mean(0)) + F.mse_loss(made.var(0), picked.var(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == EVERY - 1:
            with torch.no_grad():
                samples = generator(torch.randn(BATCH, NOISE)).view(-1, 1, SIDE, SIDE)
            print(step, distance(samples))  # spent: rare-steps
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
