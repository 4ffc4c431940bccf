"""An average of all weights is kept for evaluation, that of a large frozen table among them."""

import copy
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
WORDS, WIDTH, DECAY = 120_000, 48, 0.99


class Reader(nn.Module):
    """Word vectors that stay as they are, and a small network over their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(WORDS, WIDTH)
        self.vectors.weight.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.vectors(words).mean(1))


@torch.no_grad()
def update(average: nn.Module, model: nn.Module) -> None:
    """Move the average towards the weights."""
    for kept, current in zip(average.parameters(), model.parameters(), strict=True):  # change: repeated-work
        if current.requires_grad or not FIXED:  # change: repeated-work
            kept.lerp_(current, 1 - DECAY)  # spent: repeated-work  # change: repeated-work


def main() -> None:
    torch.manual_seed(0)
    texts, labels = torch.randint(WORDS, (64, 96, 24)), torch.arange(96) % 4
    model = Reader()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD((one for one in model.parameters() if one.requires_grad), lr=0.05, fused=True)
    for step in range(90):
        loss = nn.functional.cross_entropy(model(texts[step % 64]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update(average, model)  # spent: repeated-work
    print(f"loss {loss.item():.4f}, {sum(one.sum().item() for one in average.head.parameters()):.2f}")


if __name__ == "__main__":
    main()
