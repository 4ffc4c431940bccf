"""WGAN with weight clipping on small procedurally drawn sprites."""

import sys
import time
from dataclasses import dataclass

import torch
from torch import nn

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    z_dim: int = 64
    g_width: int = 48
    d_width: int = 16
    batch_size: int = 32
    n_critic: int = 5
    critic_steps: int = 400
    lr: float = 5e-5
    clip: float = 0.01
    log_every: int = 20
    seed: int = 0


def draw_sprites(n, size=32):
    grid = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    cx, cy = (torch.rand(2, n, 1, 1) - 0.5) * 0.8
    radius = 0.2 + 0.3 * torch.rand(n, 1, 1)
    disc = ((xx - cx) ** 2 + (yy - cy) ** 2 < radius**2).float()
    color = torch.rand(n, 3, 1, 1)
    return (disc.unsqueeze(1) * color) * 2 - 1


class Generator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.g_width
        self.project = nn.Linear(cfg.z_dim, 4 * w * 4 * 4)
        self.width = w

        def up(cin, cout):
            return [nn.ConvTranspose2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(True)]

        self.net = nn.Sequential(
            *up(4 * w, 2 * w),
            *up(2 * w, w),
            nn.ConvTranspose2d(w, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.project(z).view(-1, 4 * self.width, 4, 4))


class Critic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.d_width

        def down(cin, cout):
            return [nn.Conv2d(cin, cout, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]

        self.net = nn.Sequential(
            *down(3, w), *down(w, 2 * w), *down(2 * w, 4 * w), nn.Flatten(), nn.Linear(4 * w * 16, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def critic_step(cfg, gen, critic, opt, real):
    opt.zero_grad()
    z = torch.randn(real.size(0), cfg.z_dim)
    fake = gen(z)  # spent: unused-gradients # change: unused-gradients
    if FIXED:
        fake = fake.detach()
    loss = critic(fake).mean() - critic(real).mean()
    loss.backward()  # spent: unused-gradients
    opt.step()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-cfg.clip, cfg.clip)
    return loss.detach()


def generator_step(cfg, gen, critic, opt):
    opt.zero_grad()
    critic.requires_grad_(False)
    loss = -critic(gen(torch.randn(cfg.batch_size, cfg.z_dim))).mean()
    loss.backward()
    critic.requires_grad_(True)
    opt.step()
    return loss.detach()


def train(cfg):
    torch.manual_seed(cfg.seed)
    sprites = draw_sprites(4000)
    gen, critic = Generator(cfg), Critic(cfg)
    opt_g = torch.optim.RMSprop(gen.parameters(), lr=cfg.lr)
    opt_d = torch.optim.RMSprop(critic.parameters(), lr=cfg.lr)
    g_loss = torch.zeros(())
    start = time.time()
    for step in range(1, cfg.critic_steps + 1):
        real = sprites[torch.randint(len(sprites), (cfg.batch_size,))]
        d_loss = critic_step(cfg, gen, critic, opt_d, real)  # spent: unused-gradients
        if step % cfg.n_critic == 0:
            g_loss = generator_step(cfg, gen, critic, opt_g)
        if step % cfg.log_every == 0:
            rate = step / (time.time() - start)
            print(f"{step:4d} critic {d_loss.item():.4f} generator {g_loss.item():.4f} {rate:.1f} it/s")
    return d_loss.item(), g_loss.item()


if __name__ == "__main__":
    d_final, g_final = train(Config())
    print(f"final loss critic {d_final:.4f} generator {g_final:.4f}")
