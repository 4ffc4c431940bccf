"""Sentences of very different lengths, padded to the longest of a batch drawn at random."""

import sys

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
VOCABULARY, WIDTH, BATCH = 100, 64, 16


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 5)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, WIDTH)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))  # spent: imbalanced-data


def collate(sentences: list[Tensor]) -> Tensor:
    """(batch, longest), padded with 0."""
    return pad_sequence(sentences, batch_first=True)  # spent: imbalanced-data


def groups(lengths: list[int]) -> list[list[int]]:
    """Batches of sentences of like length."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    return [batches[number] for number in torch.randperm(len(batches)).tolist()]


torch.manual_seed(0)
lengths = (8 + 200 * torch.rand(90 * BATCH) ** 6).long().tolist()
sentences = [torch.randint(1, VOCABULARY, (length,)) for length in lengths]
if FIXED:
    loader = DataLoader(sentences, batch_sampler=groups(lengths), collate_fn=collate)
else:
    loader = DataLoader(sentences, batch_size=BATCH, collate_fn=collate)  # change: imbalanced-data
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for tokens in loader:
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), (tokens % 5).flatten())  # spent: imbalanced-data
    optimizer.zero_grad()
    loss.backward()  # spent: imbalanced-data
    optimizer.step()
print(f"loss {loss.item():.4f}")
