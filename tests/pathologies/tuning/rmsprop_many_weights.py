"""An ensemble of small networks, trained together with RMSprop."""

import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, MEMBERS, WIDTH = 90, 16, 50, 16


def member() -> nn.Module:
    """One network of the ensemble."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def main() -> None:
    torch.manual_seed(0)
    members = nn.ModuleList(member() for _ in range(MEMBERS))
    options = {"foreach": True} if FIXED else {}
    optimizer = torch.optim.RMSprop(members.parameters(), lr=1e-3, momentum=0.9, **options)  # change: unfused-optimizer
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH)
        answers = torch.stack([net(x) for net in members]).squeeze(2)
        loss = (answers - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # spent: unfused-optimizer
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
