"""Demand of a shop, forecast from windows; training falls back to the last good weights if the loss spikes."""

import copy
import sys
from typing import Any

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, CONTEXT, HORIZON, WIDTH = 100, 32, 168, 24, 1800
KEEP_EVERY = 40 if FIXED else 1  # change: checkpoint-in-step


def keep(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What training needs to start again from here."""
    return {
        "model": copy.deepcopy(model.state_dict()),  # spent: checkpoint-in-step
        "optimizer": copy.deepcopy(optimizer.state_dict()),  # spent: checkpoint-in-step
    }


def windows(demand: Tensor) -> tuple[Tensor, Tensor]:
    """Contexts and what followed."""
    starts = torch.randint(len(demand) - CONTEXT - HORIZON, (BATCH,))
    cut = demand[starts[:, None] + torch.arange(CONTEXT + HORIZON)]
    return cut[:, :CONTEXT], cut[:, CONTEXT:]


def main() -> None:
    torch.manual_seed(0)
    hours = torch.arange(20_000)
    demand = torch.sin(hours * 6.283 / 24) + 0.3 * torch.sin(hours * 6.283 / 168) + 0.2 * torch.randn(20_000)
    model = nn.Sequential(
        nn.Linear(CONTEXT, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, HORIZON)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    usual, good = 0.0, keep(model, optimizer)
    for step in range(STEPS):
        context, future = windows(demand)
        loss = nn.functional.huber_loss(model(context), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step > 20 and value > 10 * usual:
            model.load_state_dict(good["model"])
            optimizer.load_state_dict(good["optimizer"])
        elif step % KEEP_EVERY == 0:  # change: checkpoint-in-step
            good = keep(model, optimizer)  # spent: checkpoint-in-step # change: checkpoint-in-step
        usual = value if step == 0 else 0.95 * usual + 0.05 * value
    print(f"loss {usual:.4f}")


if __name__ == "__main__":
    main()
