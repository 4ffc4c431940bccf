"""A small network over spectrograms that pools after each convolution, in torch's default layout on a CPU."""

import itertools
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
CLASSES = 12


class Tagger(nn.Module):
    """Three convolutions, each followed by a pooling."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 24, 32, 32)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in itertools.pairwise(widths)
        )
        self.head = nn.Linear(32 * 8 * 6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = nn.functional.max_pool2d(torch.relu(convolution(x)), 2)  # spent: channels-first
        return self.head(x.flatten(1))


def main() -> None:
    torch.manual_seed(0)
    spectrograms, labels = torch.randn(256, 1, 64, 48), torch.arange(256) % CLASSES
    layout = torch.channels_last if FIXED else torch.contiguous_format
    model = Tagger().to(memory_format=layout)  # change: channels-first
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for step in range(80):
        chosen = torch.arange(step * 24, step * 24 + 24) % 256
        loss = nn.functional.cross_entropy(model(spectrograms[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
