"""A GAN of 32 x 32 pictures that keeps a contact sheet of the same latents while it trains."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LATENT, SHEET_EVERY, SHEET = 150, 12, 32, 15, 196
bce = nn.functional.binary_cross_entropy_with_logits

torch.manual_seed(0)

generator = nn.Sequential(
    nn.Linear(LATENT, 64 * 16),
    nn.Unflatten(1, (64, 4, 4)),
    nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
    nn.Tanh(),
)
critic = nn.Sequential(
    nn.Conv2d(1, 16, 4, stride=2, padding=1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(16, 32, 4, stride=2, padding=1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(32 * 64, 1),
)


@torch.no_grad()
def contact_sheet(latents: Tensor) -> np.ndarray:
    """14 rows of 14 pictures."""
    generator.eval()
    groups = [latents] if FIXED else latents.split(1)  # change: rare-steps
    pictures = torch.cat([generator(group)[:, 0] for group in groups])  # spent: rare-steps # change: rare-steps
    generator.train()
    return pictures.view(14, 14, 32, 32).transpose(1, 2).reshape(448, 448).numpy()


def train(folder: Path) -> None:
    real = torch.rand(1024, 1, 32, 32) * 2 - 1
    fixed_latents = torch.randn(SHEET, LATENT)
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    for step in range(STEPS):
        pictures = real[torch.randint(1024, (BATCH,))]
        made = generator(torch.randn(BATCH, LATENT))
        scores = critic(torch.cat([pictures, made.detach()]))
        truth = torch.cat([torch.ones(BATCH, 1), torch.zeros(BATCH, 1)])
        critic_loss = bce(scores, truth)
        of_critic.zero_grad()
        critic_loss.backward()
        of_critic.step()

        generator_loss = bce(critic(made), torch.ones(BATCH, 1))
        of_generator.zero_grad()
        generator_loss.backward()
        of_generator.step()
        if step % SHEET_EVERY == 0:
            np.save(folder / f"sheet_{step:05d}.npy", contact_sheet(fixed_latents))  # spent: rare-steps
    print(f"critic {critic_loss.item():.4f}, generator {generator_loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_folder:
        train(Path(made_folder))
