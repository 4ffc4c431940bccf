"""An adapter before a recurrent model that reads an endless stream: each piece starts from the last state."""

import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, PIECE, WIDTH = 90, 16, 2, 32


def main() -> None:
    torch.manual_seed(0)
    adapter, head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)
    memory = nn.GRU(WIDTH, WIDTH, batch_first=True).requires_grad_(False)
    optimizer = torch.optim.SGD([*adapter.parameters(), *head.parameters()], lr=0.01)
    state = torch.zeros(1, BATCH, WIDTH)
    for _ in range(STEPS):
        piece = torch.randn(BATCH, PIECE + 1, 8)
        if FIXED:
            state = state.detach()
        states, state = memory(adapter(piece[:, :-1]), state)  # change: growing-step
        loss = (head(states) - piece[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # spent: growing-step # change: growing-step
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
