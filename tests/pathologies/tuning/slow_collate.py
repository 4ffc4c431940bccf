"""Sentences of different lengths are padded to one batch number by number, in Python."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
LENGTH, VOCABULARY = 256, 2000


def collate(sentences: list[list[int]] | list[Tensor]) -> Tensor:
    """Pad to LENGTH with 0."""
    batch = torch.zeros(len(sentences), LENGTH, dtype=torch.long)
    if FIXED:
        for row, sentence in zip(batch, sentences, strict=True):
            row[: len(sentence)] = sentence
        return batch
    for row, sentence in enumerate(sentences):
        for column, token in enumerate(sentence):
            batch[row, column] = token  # spent: input-bound  # change: input-bound
    return batch


class Bag(nn.Module):
    """Embeds, mixes with two wide layers and scores; pads count as words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.mix = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(tokens)).mean(1))


torch.manual_seed(0)
draw = torch.Generator().manual_seed(0)
lengths = torch.randint(LENGTH // 2, LENGTH, (80 * 16,), generator=draw).tolist()
tokenized = [torch.randint(1, VOCABULARY, (length,), generator=draw) for length in lengths]
sentences = tokenized if FIXED else [sentence.tolist() for sentence in tokenized]
model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for tokens in DataLoader(sentences, batch_size=16, collate_fn=collate):
    loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
