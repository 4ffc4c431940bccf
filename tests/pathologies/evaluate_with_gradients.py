"""An evaluation that forgets no_grad: every activation is kept for a backward pass that never comes."""

import contextlib
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH, LAYERS = 64, 12


class Judge(nn.Module):
    """A stack of gated layers over long sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for gate in self.gates:
            x = x + torch.sigmoid(gate(x)) * torch.relu(x)
            x = x / x.abs().amax(-1, keepdim=True)
        return self.head(x.mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Judge().eval()
    total = torch.zeros(3)
    with torch.no_grad() if FIXED else contextlib.nullcontext():
        for x in DataLoader(torch.randn(60 * 8, 256, WIDTH), batch_size=8):
            scores = model(x)  # planted: grad-in-evaluation
            total += scores.detach().sum(0)
    print(f"scores {total.norm().item():.3f}")


if __name__ == "__main__":
    main()
