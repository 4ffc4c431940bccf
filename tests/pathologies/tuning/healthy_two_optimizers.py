"""A generator and a discriminator, each with its optimizer; the model is called three times per step, as it must."""

import torch
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))
    critic = nn.Sequential(
        nn.Linear(256, 512), nn.LeakyReLU(0.2), nn.Linear(512, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)
    )
    of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-4, foreach=True)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-4, foreach=True)
    for real in DataLoader(torch.randn(70 * 64, 256).tanh(), batch_size=64):
        made = generator(torch.randn(len(real), 32))
        of_critic.zero_grad()
        (nn.functional.softplus(critic(made.detach())) + nn.functional.softplus(-critic(real))).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = nn.functional.softplus(-critic(made)).mean()
        loss.backward()
        of_generator.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
