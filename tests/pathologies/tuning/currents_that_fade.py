"""Spiking neurons: what comes in fades from time step to time step, and most of the time nothing comes in."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, TIMES, BUSY, INPUTS, NEURONS, CLASSES = 60, 32, 150, 15, 32, 256, 4
if FIXED:
    torch.set_flush_denormal(True)


class Neurons(nn.Module):
    """Sums up a current that fades, and answers with the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(INPUTS, NEURONS, bias=False)
        self.keeps = nn.Parameter(torch.full((NEURONS,), 0.35))
        self.answer = nn.Linear(NEURONS, CLASSES)

    def forward(self, events: Tensor) -> Tensor:
        current = charge = torch.zeros(len(events), NEURONS)
        for moment in self.weight(events).unbind(1):
            current = current * self.keeps + moment  # spent: subnormal-numbers # change: subnormal-numbers
            charge = charge + current  # spent: subnormal-numbers
        return self.answer(charge)


def main() -> None:
    torch.manual_seed(0)
    model = Neurons()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        events = torch.zeros(BATCH, TIMES, INPUTS)
        events[:, :BUSY] = torch.rand(BATCH, BUSY, INPUTS).round()
        events[:, -1] = 1.0
        loss = F.cross_entropy(model(events), torch.randint(CLASSES, (BATCH,)))
        optimizer.zero_grad()
        loss.backward()  # spent: subnormal-numbers
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
