"""A deep and narrow tabular network, trained with AdamW."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH, BLOCKS = 90, 32, 24, 70


class Block(nn.Module):
    """A residual layer with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x)).relu()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 1))
    options = {"fused": True} if FIXED else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)  # change: unfused-optimizer
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # spent: unfused-optimizer
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
