"""An evaluation that forgets no_grad: every activation is kept for a backward pass that never comes."""

import contextlib
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH, LAYERS = 128, 8


class Judge(nn.Module):
    """A stack of layers over long sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)))
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Judge().eval()
    total = torch.zeros(3)
    with torch.no_grad() if FIXED else contextlib.nullcontext():  # change: grad-in-evaluation
        for x in DataLoader(torch.randn(60 * 8, 256, WIDTH), batch_size=8):
            scores = model(x)  # spent: grad-in-evaluation  # change: grad-in-evaluation
            total += scores.detach().sum(0)
    print(f"scores {total.norm().item():.3f}")


if __name__ == "__main__":
    main()
