"""A conditional GAN whose generator has a small head for each of many attributes."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


class Heads(nn.Module):
    def __init__(self, n: int = 120) -> None:
        super().__init__()
        self.trunk = nn.Linear(32, 64)
        self.scale = nn.ParameterList([nn.Parameter(torch.ones(64)) for _ in range(n)])
        self.shift = nn.ParameterList([nn.Parameter(torch.zeros(64)) for _ in range(n)])
        self.out = nn.Linear(64, 16)

    def forward(self, z: Tensor) -> Tensor:
        h = self.trunk(z).relu()
        return self.out((h[:, None] * torch.stack(list(self.scale)) + torch.stack(list(self.shift))).mean(1))


def main() -> None:
    torch.manual_seed(0)
    g, d = Heads(), nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(), nn.Linear(64, 1))
    og = torch.optim.AdamW(g.parameters(), lr=1e-4, betas=(0.5, 0.99), fused=FIXED or None)  # change: unfused-optimizer
    od = torch.optim.AdamW(d.parameters(), lr=1e-4, betas=(0.5, 0.99), fused=True)
    bce = nn.BCEWithLogitsLoss()
    for _ in range(400):
        real = torch.randn(64, 16)
        fake = g(torch.randn(64, 32))
        loss_d = bce(d(real), torch.ones(64, 1)) + bce(d(fake.detach()), torch.zeros(64, 1))
        od.zero_grad()
        loss_d.backward()
        od.step()
        loss_g = bce(d(fake), torch.ones(64, 1))
        og.zero_grad()
        loss_g.backward()
        og.step()  # spent: unfused-optimizer
    print(loss_g.item())


if __name__ == "__main__":
    main()
