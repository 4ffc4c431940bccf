"""Speech recognition that spells out every batch and counts its character errors in Python."""

import sys
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
LETTERS = " abcdefghijklmnopqrstuvwxyz'"
BANDS, FRAMES, BATCH, STEPS = 40, 160, 16, 120


def edit_distance(said: str, heard: str) -> int:
    """The least number of characters to change, insert or delete."""
    row = list(range(len(heard) + 1))
    for i, a in enumerate(said, start=1):  # spent: python-bound
        corner, row[0] = row[0], i  # spent: python-bound
        for j, b in enumerate(heard, start=1):  # spent: python-bound
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))  # spent: python-bound
    return row[-1]


def spell(path: list[int]) -> str:
    """The text of a path of letters: repetitions are one letter."""
    return "".join(LETTERS[letter] for letter, _ in groupby(path))


def character_errors(logits: Tensor, aligned: Tensor) -> float:
    """Errors per character of the texts."""
    texts = [spell(path) for path in aligned.tolist()]
    paths = logits.argmax(1).tolist()
    pairs = zip(texts, map(spell, paths), strict=True)
    wrong = sum(edit_distance(text, heard) for text, heard in pairs)  # spent: python-bound
    return wrong / sum(map(len, texts))


class Listener(nn.Module):
    """Convolutions over time; the first halves it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(BANDS, 96, 5, stride=2, padding=2)
        self.second = nn.Conv1d(96, 96, 5, padding=2)
        self.letters = nn.Linear(96, len(LETTERS))

    def forward(self, sounds: Tensor) -> Tensor:
        hidden = self.second(self.first(sounds.transpose(1, 2)).relu()).relu()
        return self.letters(hidden.transpose(1, 2)).transpose(1, 2)


def utterances(number: int) -> TensorDataset:
    """Sounds of two frames per aligned letter, and the letters; each letter lasts for two of these."""
    aligned = torch.randint(0, len(LETTERS), (number, FRAMES // 4)).repeat_interleave(2, dim=1)
    voices = torch.randn(len(LETTERS), BANDS)
    sounds = voices[aligned.repeat_interleave(2, dim=1)]
    return TensorDataset(sounds + torch.randn_like(sounds), aligned)


def main() -> None:
    torch.manual_seed(0)
    model = Listener()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    errors = 0.0
    every = 50 if FIXED else 1  # change: python-bound
    loader = DataLoader(utterances(STEPS * BATCH), batch_size=BATCH, shuffle=True)
    for step, (sounds, aligned) in enumerate(loader):
        logits = model(sounds)
        loss = nn.functional.cross_entropy(logits, aligned)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            errors = character_errors(logits.detach(), aligned)  # spent: python-bound # change: python-bound
    print(f"loss {loss.item():.4f} character errors {errors:.2f}")


if __name__ == "__main__":
    main()
