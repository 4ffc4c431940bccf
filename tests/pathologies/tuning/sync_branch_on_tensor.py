"""Gradients are clipped by hand: the host asks in every step whether the norm is too large."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
MOST = 1.0


def clip(gradients: list[Tensor]) -> None:
    """Scale the gradients down to a norm of MOST."""
    norm = torch.nn.utils.get_total_norm(gradients)
    if FIXED:
        torch._foreach_mul_(gradients, (MOST / norm).clamp(max=1.0))
        return
    if norm > MOST:  # spent: sync-in-step  # change: sync-in-step
        torch._foreach_mul_(gradients, MOST / norm)


def main() -> None:
    torch.manual_seed(0)
    series, target = torch.randn(80 * 16, 60, 24), torch.randn(80 * 16, 1)
    encoder, head = nn.LSTM(24, 160, batch_first=True), nn.Linear(160, 1)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    for x, y in DataLoader(TensorDataset(series, target), batch_size=16):
        states, _ = encoder(x)
        loss = nn.functional.mse_loss(head(states[:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        clip([parameter.grad for parameter in parameters if parameter.grad is not None])
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
