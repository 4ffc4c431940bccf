"""An autoencoder that keeps reconstructions for pictures later, and with each of them its whole graph."""

import sys
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv


def net(*widths: int) -> nn.Sequential:
    """Linear layers with an activation after each."""
    return nn.Sequential(*(part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.GELU())))


def main() -> None:
    torch.manual_seed(0)
    encoder, decoder, preview = net(256, 1024, 64), net(64, 1024, 256), net(64, 1024, 256)
    parameters = [*encoder.parameters(), *decoder.parameters(), *preview.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    previews: list[Tensor] = []
    for rows in DataLoader(torch.randn(100 * 256, 256), batch_size=256):
        code = encoder(rows)
        loss = nn.functional.mse_loss(decoder(code), rows)
        picture = preview(code.detach())
        if FIXED:
            previews.append(picture[:8].detach())
        else:
            previews.append(picture)  # spent: memory-growth  # change: memory-growth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f} previews {len(previews)}")


if __name__ == "__main__":
    main()
