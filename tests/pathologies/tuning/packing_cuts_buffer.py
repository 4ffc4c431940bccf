"""A small language model is trained on documents packed into rows; the rest of the buffer is copied for each row."""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FIXED = "--fixed" in sys.argv
WORDS, LENGTH, BATCH, STEPS = 512, 64, 8, 160
SHARD, END = 400_000, 0


class Packed(IterableDataset):
    """Rows of LENGTH + 1 tokens, cut from documents that are joined."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def documents(self) -> Iterator[list[int]]:
        """Documents of some hundred tokens."""
        while True:
            yield self.draw.integers(1, WORDS, int(self.draw.integers(2000, 6000))).tolist()

    def shard(self) -> list[int]:
        """The tokens of as many documents as fill a shard."""
        buffer: list[int] = []
        for document in self.documents():
            buffer.extend(document)
            buffer.append(END)
            if len(buffer) >= SHARD:
                break
        return buffer

    def __iter__(self) -> Iterator[torch.Tensor]:
        buffer = self.shard()
        if FIXED:
            for start in range(0, len(buffer) - LENGTH, LENGTH + 1):
                yield torch.tensor(buffer[start : start + LENGTH + 1])
            return
        while len(buffer) > LENGTH:
            row, buffer = buffer[: LENGTH + 1], buffer[LENGTH + 1 :]  # spent: input-bound # change: input-bound
            yield torch.tensor(row)


class LanguageModel(nn.Module):
    """A small decoder."""

    def __init__(self, width: int = 96, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))
        self.head = nn.Linear(width, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loader = DataLoader(Packed(1), batch_size=BATCH)
    for step, rows in enumerate(loader):  # spent: input-bound
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == STEPS:
            break
    print(f"loss {loss.item():.3f}")
