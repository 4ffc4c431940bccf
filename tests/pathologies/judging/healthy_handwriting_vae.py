"""A variational autoencoder; when it is trained, its bound is estimated from many samples per image."""

import math

import torch
from torch import Tensor, nn

STEPS, BATCH, LATENT, SAMPLES = 200, 128, 16, 100

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 2 * LATENT))
decoder = nn.Sequential(nn.Linear(LATENT, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 784))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3, fused=True)


def bound(images: Tensor) -> Tensor:
    """The evidence lower bound of each image, from one sample."""
    mean, log_variance = encoder(images).chunk(2, dim=1)
    latent = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    missed = nn.functional.binary_cross_entropy_with_logits(decoder(latent), images, reduction="none").sum(1)
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return -missed - divergence


@torch.no_grad()
def likelihood(images: Tensor) -> float:
    """Mean log likelihood, from importance samples."""
    mean, log_variance = encoder(images).chunk(2, dim=1)
    weights = []
    for _ in range(SAMPLES):
        noise = torch.randn_like(mean)
        latent = mean + (0.5 * log_variance).exp() * noise
        missed = nn.functional.binary_cross_entropy_with_logits(decoder(latent), images, reduction="none").sum(1)
        prior = -0.5 * latent.square().sum(1)
        proposal = -0.5 * (noise.square() + log_variance).sum(1)
        weights.append(-missed + prior - proposal)
    return float((torch.stack(weights).logsumexp(0) - math.log(SAMPLES)).mean())


strokes = (torch.rand(20, 784) > 0.8).float()
images = (strokes[torch.randint(20, (BATCH * 16,))] + 0.05 * torch.randn(BATCH * 16, 784) > 0.5).float()
for step in range(STEPS):
    start = step % 16 * BATCH
    loss = -bound(images[start : start + BATCH]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"bound {-loss.item():.2f}, likelihood {likelihood(images[:512]):.2f}")
