"""A variational autoencoder of small grey images, with the two terms of its loss apart."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LATENT = 90, 96, 24


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 49, 2 * LATENT),
        )
        self.decoder = nn.Sequential(nn.Linear(LATENT, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, images: Tensor) -> Tensor:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        return self.decode(mean, log_variance)

    def decode(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(latent).view(-1, 1, 28, 28)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """From the standard normal distribution, per image."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


def losses(model: Autoencoder, images: Tensor) -> tuple[Tensor, Tensor]:
    """Reconstruction and divergence."""
    if FIXED:
        mean, log_variance = model.encoder(images).chunk(2, dim=1)
        drawn = model.decode(mean, log_variance)
    else:
        drawn = model(images)  # change: unexpected-call-count
        again = model.encoder(images)  # spent: unexpected-call-count # change: unexpected-call-count
        mean, log_variance = again.chunk(2, dim=1)
    reconstruction = F.binary_cross_entropy_with_logits(drawn, images, reduction="sum") / len(images)
    return reconstruction, divergence(mean, log_variance)


def main() -> None:
    torch.manual_seed(0)
    images = (torch.rand(BATCH * 8, 1, 28, 28) > 0.7).float()
    model = Autoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(STEPS):
        start = step % 8 * BATCH
        reconstruction, kl = losses(model, images[start : start + BATCH])
        loss = reconstruction + min(1.0, step / 50) * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"reconstruction {reconstruction.item():.2f}, divergence {kl.item():.3f}")


if __name__ == "__main__":
    main()
