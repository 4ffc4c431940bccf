"""An autoencoder of signals with a codebook: each vector becomes its nearest code."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LENGTH, WIDTH, CODES = 90, 24, 64, 48, 192


class Codebook(nn.Module):
    """Vectors and the gradients that pass them by."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, WIDTH) * 0.1)

    @torch.no_grad()
    def nearest(self, vectors: Tensor) -> Tensor:
        """The index of the nearest code of each vector."""
        if FIXED:
            return torch.cdist(vectors, self.codes).argmin(1)
        apart = vectors[:, None] - self.codes  # spent: pairwise-broadcast # change: pairwise-broadcast
        return apart.square().sum(-1).argmin(1)  # spent: pairwise-broadcast # change: pairwise-broadcast

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """The codes in place of the vectors, and how far they are apart."""
        chosen = self.codes[self.nearest(vectors)]
        loss = F.mse_loss(chosen, vectors.detach()) + 0.25 * F.mse_loss(vectors, chosen.detach())
        return vectors + (chosen - vectors).detach(), loss


def main() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv1d(1, WIDTH, 5, padding=2), nn.ReLU(), nn.Conv1d(WIDTH, WIDTH, 5, padding=2))
    decoder = nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.ReLU(), nn.Conv1d(WIDTH, 1, 5, padding=2))
    book = Codebook()
    parts = nn.ModuleList((encoder, decoder, book))
    optimizer = torch.optim.AdamW(parts.parameters(), lr=2e-3, fused=True)
    for _ in range(STEPS):
        signals = torch.randn(BATCH, 1, LENGTH).cumsum(-1)
        hidden = encoder(signals)
        vectors, apart = book(hidden.transpose(1, 2).reshape(-1, WIDTH))
        rebuilt = decoder(vectors.view(BATCH, LENGTH, WIDTH).transpose(1, 2))
        loss = F.mse_loss(rebuilt, signals) + apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
