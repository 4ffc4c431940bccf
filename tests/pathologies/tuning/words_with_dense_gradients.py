"""Word vectors from pairs of words, trained with Adagrad: a batch looks up few of the 40,000 words."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
WORDS, WIDTH, BATCH, NEGATIVES, STEPS = 40_000, 48, 192, 4, 90


class Vectors(nn.Module):
    """How much more likely a word is beside another than beside random ones."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, WIDTH, sparse=FIXED)  # change: dense-embedding-gradients
        self.beside = nn.Embedding(WORDS, WIDTH, sparse=FIXED)  # change: dense-embedding-gradients

    def forward(self, words: Tensor, others: Tensor) -> Tensor:
        return torch.einsum("bw,bnw->bn", self.word(words), self.beside(others))


def pairs(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words, and for each one that was beside it and random ones; few words are frequent."""
    ranks = torch.rand(BATCH, 2, generator=generator) ** 3
    near = (ranks * WORDS).long()
    random = torch.randint(WORDS, (BATCH, NEGATIVES), generator=generator)
    return near[:, 0], torch.cat([near[:, 1:], random], dim=1)


def main() -> None:
    torch.manual_seed(0)
    model = Vectors()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)  # change: dense-embedding-gradients
    target = torch.zeros(BATCH, 1 + NEGATIVES)
    target[:, 0] = 1
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        words, others = pairs(generator)
        loss = nn.functional.binary_cross_entropy_with_logits(model(words, others), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # spent: dense-embedding-gradients
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
