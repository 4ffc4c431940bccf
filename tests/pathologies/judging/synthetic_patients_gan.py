"""A GAN that makes up patients' records from a table of real ones."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, COLUMNS, LATENT, WIDTH = 80, 16, 60, 64, 2000


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, outputs),
    )


def adam(network: nn.Module, rate: float) -> torch.optim.Optimizer:
    """As in the paper."""
    fused = FIXED or None
    return torch.optim.Adam(network.parameters(), lr=rate, betas=(0.5, 0.9), fused=fused)  # change: unfused-optimizer


def patients(rows: int) -> Tensor:
    """Columns that depend on each other."""
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(rows, 12, generator=generator)
    return torch.tanh(hidden @ torch.randn(12, COLUMNS, generator=generator))


def main() -> None:
    torch.manual_seed(0)
    real = patients(4000)
    generator, critic = network(LATENT, COLUMNS), network(COLUMNS, 1)
    of_generator, of_critic = adam(generator, 2e-4), adam(critic, 1e-4)
    for step in range(STEPS):
        made = generator(torch.randn(BATCH, LATENT)).tanh()
        batch = real[torch.randint(len(real), (BATCH,))]
        critic_loss = (1 - critic(batch)).relu().mean() + (1 + critic(made.detach())).relu().mean()
        of_critic.zero_grad()
        critic_loss.backward()
        of_critic.step()  # spent: unfused-optimizer

        generator_loss = -critic(made).mean()
        of_generator.zero_grad()
        generator_loss.backward()
        of_generator.step()  # spent: unfused-optimizer
        if step % 30 == 0:
            print(f"{step}: critic {critic_loss.item():.4f}, generator {generator_loss.item():.4f}")


if __name__ == "__main__":
    main()
