"""Latent diffusion: pictures of a small catalogue pass through a frozen autoencoder, a UNet learns their latents."""

import sys

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DModel
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
EPOCHS = 5


def build_autoencoder() -> AutoencoderKL:
    """Pictures of 64 x 64 to latents of 16 x 16."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 24, 32),
        norm_num_groups=8,
        latent_channels=4,
        sample_size=64,
    )


def build_unet() -> UNet2DModel:
    """Predicts the noise in a latent."""
    return UNet2DModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 48),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
    )


@torch.no_grad()
def encode(autoencoder: AutoencoderKL, pictures: Tensor) -> Tensor:
    """The means of the latents, scaled."""
    return autoencoder.encode(pictures).latent_dist.mode() * 0.18215  # spent: repeated-work


def main() -> None:
    torch.manual_seed(0)
    pictures = torch.rand(160, 3, 64, 64) * 2 - 1
    autoencoder = build_autoencoder().eval().requires_grad_(False)
    unet = build_unet()
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4, fused=True)
    data = torch.cat([encode(autoencoder, part) for part in pictures.split(32)]) if FIXED else pictures
    loader = DataLoader(TensorDataset(data), batch_size=16, shuffle=True)
    for _ in range(EPOCHS):
        for (batch,) in loader:
            latents = batch if FIXED else encode(autoencoder, batch)  # spent: repeated-work # change: repeated-work
            noise = torch.randn_like(latents)
            t = torch.randint(0, 1000, (len(latents),))
            predicted = unet(scheduler.add_noise(latents, noise, t), t).sample
            loss = nn.functional.mse_loss(predicted, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
