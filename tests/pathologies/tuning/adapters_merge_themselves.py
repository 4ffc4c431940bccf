"""A classifier of notes whose frozen layers have adapters of low rank, each of which merges itself."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH, LAYERS, RANK, CLASSES = 90, 96, 768, 4, 8, 12


class Adapted(nn.Module):
    """A linear layer that is not trained, and two thin factors that are."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """The layer with its update."""
        if FIXED:
            return self.base(x) + 2 * F.linear(F.linear(x, self.down), self.up)
        weight = self.base.weight + 2 * self.up @ self.down  # spent: merged-low-rank # change: merged-low-rank
        return F.linear(x, weight, self.base.bias)  # spent: merged-low-rank # change: merged-low-rank


def main() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [Adapted(nn.Linear(WIDTH, WIDTH)), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    notes = torch.randn(60 * BATCH, WIDTH)
    classes = torch.randint(CLASSES, (60 * BATCH,))
    for step in range(STEPS):
        rows = slice(step % 60 * BATCH, (step % 60 + 1) * BATCH)
        loss = F.cross_entropy(model(notes[rows]), classes[rows])
        optimizer.zero_grad()
        loss.backward()  # spent: merged-low-rank
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
