"""How a rumour spreads: people hear from those they know, by a layer that each acquaintance applies to what is told."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, PEOPLE, KNOWN, WIDTH = 60, 600, 16, 96


def heard_of(told: Tensor, hearer: Tensor, trust: Tensor, people: int) -> Tensor:
    """What each person hears, by how much they trust who tells it."""
    return told.new_zeros(people, told.shape[1]).index_add(0, hearer, trust * told)


class Told(nn.Module):
    """Each person's features, and what the others tell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.told = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, teller: Tensor, hearer: Tensor, trust: Tensor) -> Tensor:
        """The next features."""
        if FIXED:
            return F.relu(self.own(x) + heard_of(self.told(x)[teller], hearer, trust, len(x)))
        told = self.told(x[teller])  # spent: repeated-rows # change: repeated-rows
        return F.relu(self.own(x) + heard_of(told, hearer, trust, len(x)))


def main() -> None:
    torch.manual_seed(0)
    teller = torch.randint(PEOPLE, (PEOPLE * KNOWN,))
    hearer = torch.arange(PEOPLE).repeat_interleave(KNOWN)
    trust = torch.rand(PEOPLE * KNOWN, 1) / KNOWN
    first, second, last = Told(WIDTH), Told(WIDTH), nn.Linear(WIDTH, 1)
    weights = [*first.parameters(), *second.parameters(), *last.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-3, fused=True)
    traits, believed = torch.randn(20, PEOPLE, WIDTH), torch.randn(20, PEOPLE)
    for step in range(STEPS):
        hidden = second(first(traits[step % 20], teller, hearer, trust), teller, hearer, trust)
        loss = F.mse_loss(last(hidden).squeeze(-1), believed[step % 20])
        optimizer.zero_grad()
        loss.backward()  # spent: repeated-rows
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
