"""Speech recognition on batches of like lengths, of more utterances where they are short, in drawn order."""

import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

BANDS, LETTERS, FRAMES_OF_BATCH, UTTERANCES = 40, 28, 1600, 1000


class Utterances(Dataset[tuple[Tensor, Tensor]]):
    """Spectrograms and letters, all in memory."""

    def __init__(self, lengths: list[int]) -> None:
        self.sounds = [torch.randn(length, BANDS) for length in lengths]
        self.letters = [torch.randint(1, LETTERS, (length // 12,)) for length in lengths]

    def __len__(self) -> int:
        return len(self.sounds)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.sounds[index], self.letters[index]


class LikeLengths(Sampler[list[int]]):
    """Batches of FRAMES_OF_BATCH frames at most."""

    def __init__(self, lengths: list[int]) -> None:
        self.batches: list[list[int]] = [[]]
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            if (len(self.batches[-1]) + 1) * lengths[index] > FRAMES_OF_BATCH:
                self.batches.append([])
            self.batches[-1].append(index)

    def __iter__(self) -> Iterator[list[int]]:
        yield from random.sample(self.batches, len(self.batches))

    def __len__(self) -> int:
        return len(self.batches)


def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sounds, letters, and the lengths of both."""
    sounds, letters = zip(*samples, strict=True)
    return (
        pad_sequence(sounds, batch_first=True),
        torch.cat(letters),
        torch.tensor([len(sound) for sound in sounds]),
        torch.tensor([len(word) for word in letters]),
    )


class Recognizer(nn.Module):
    """Convolutions over time, all of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(BANDS, 192, 5, stride=2, padding=2)
        self.body = nn.Sequential(
            nn.ReLU(), nn.Conv1d(192, 192, 5, padding=2), nn.ReLU(), nn.Conv1d(192, 192, 5, padding=2), nn.ReLU()
        )
        self.letters = nn.Conv1d(192, LETTERS, 1)

    def forward(self, sounds: Tensor) -> Tensor:
        return self.letters(self.body(self.stem(sounds.mT))).permute(2, 0, 1)


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    lengths = [random.randint(60, 240) for _ in range(UTTERANCES)]
    loader = DataLoader(Utterances(lengths), batch_sampler=LikeLengths(lengths), collate_fn=collate)
    model, loss_of = Recognizer(), nn.CTCLoss(zero_infinity=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for sounds, letters, frames, words in loader:
        log_shares = model(sounds).log_softmax(2)
        loss = loss_of(log_shares, letters, (frames + 1) // 2, words)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
