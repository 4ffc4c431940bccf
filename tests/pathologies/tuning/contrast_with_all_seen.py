"""Contrastive learning against the embeddings of earlier batches."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH, KEPT = 100, 64, 64, 512


class Negatives:
    """Embeddings of earlier batches."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def all(self) -> Tensor:
        """As one matrix."""
        return torch.cat(self.seen) if self.seen else torch.zeros(1, WIDTH)

    def add(self, embeddings: Tensor) -> None:
        """Remember a batch."""
        self.seen.append(embeddings)  # change: growing-step
        if FIXED:
            self.seen = self.seen[-KEPT // BATCH :]


def main() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    negatives = Negatives()
    for _ in range(STEPS):
        x = torch.randn(BATCH, 128)
        one, other = encoder(x), encoder(x + 0.1 * torch.randn_like(x))
        far = one @ negatives.all().T  # spent: growing-step
        near = (one * other).sum(1, keepdim=True)
        scores = torch.cat([near, far], dim=1)  # spent: growing-step
        loss = nn.functional.cross_entropy(scores, torch.zeros(BATCH, dtype=torch.long))  # spent: growing-step
        optimizer.zero_grad()
        loss.backward()  # spent: growing-step
        optimizer.step()
        negatives.add(other.detach())  # change: growing-step
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
