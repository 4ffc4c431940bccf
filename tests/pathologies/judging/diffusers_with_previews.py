"""Unconditional diffusion with the UNet and the schedulers of diffusers, and previews while it trains."""

import sys

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
NOISE_LEVELS = 100

noise_scheduler = DDPMScheduler(num_train_timesteps=NOISE_LEVELS)
sampler = DDIMScheduler(num_train_timesteps=NOISE_LEVELS) if FIXED else noise_scheduler  # change: rare-steps
sampler.set_timesteps(10 if FIXED else NOISE_LEVELS)  # change: rare-steps


@torch.inference_mode()
def preview(model: nn.Module) -> Tensor:
    """Some pictures as the model draws them now."""
    model.eval()
    picture = torch.randn(4, 1, 16, 16)
    for t in sampler.timesteps:
        picture = sampler.step(model(picture, t).sample, t, picture).prev_sample  # spent: rare-steps
    model.train()
    return picture


def main() -> None:
    torch.manual_seed(0)
    pictures = torch.rand(1280, 1, 16, 16) * 2 - 1
    loader = DataLoader(TensorDataset(pictures), batch_size=16, shuffle=True)
    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(32, 48),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    shown = []
    for step, (clean,) in enumerate(loader):
        noise = torch.randn_like(clean)
        t = torch.randint(0, NOISE_LEVELS, (len(clean),))
        loss = nn.functional.mse_loss(model(noise_scheduler.add_noise(clean, noise, t), t).sample, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            shown.append(preview(model))  # spent: rare-steps # change: rare-steps
    print(f"loss {loss.item():.3f}, {len(shown)} previews")


if __name__ == "__main__":
    main()
