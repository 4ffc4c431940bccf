"""Songs for playlists: before each of two epochs, songs that a playlist has not are drawn in Python, one by one."""

import random
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
LISTS, SONGS, PER_LIST, NEGATIVES, BATCH, EPOCHS = 250, 2_500, 110, 3, 1_024, 2


class Taste(nn.Module):
    """The logit that a playlist has a song."""

    def __init__(self) -> None:
        super().__init__()
        self.playlist, self.song = nn.Embedding(LISTS, 32), nn.Embedding(SONGS, 32)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, playlists: Tensor, songs: Tensor) -> Tensor:
        return self.head(torch.cat([self.playlist(playlists), self.song(songs)], dim=1)).squeeze(1)


class Playlists:
    """Playlists, with songs that they have and others that they have not, drawn anew for each epoch."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.songs = [self.random.sample(range(SONGS), PER_LIST) for _ in range(LISTS)]

    def other_song(self, playlist: int) -> int:
        """A song that the playlist has not."""
        song = int(self.random.random() * SONGS)
        while song in self.songs[playlist]:  # spent: rare-steps # change: rare-steps
            song = int(self.random.random() * SONGS)
        return song

    def rows(self) -> Tensor:
        """Each song of each playlist, and those drawn for it."""
        rows = []
        for playlist, songs in enumerate(self.songs):
            for song in songs:
                rows.append((playlist, song, 1))
                others = (self.other_song(playlist) for _ in range(NEGATIVES))
                rows += [(playlist, other, 0) for other in others]  # spent: rare-steps # change: rare-steps
        return torch.tensor(rows)

    def rows_at_once(self) -> Tensor:
        """The same, with one draw for all and another for those that a playlist has."""
        has = torch.zeros(LISTS, SONGS, dtype=torch.bool)
        has.scatter_(1, torch.tensor(self.songs), True)
        playlists = torch.arange(LISTS).repeat_interleave(PER_LIST * NEGATIVES)
        others = torch.randint(SONGS, playlists.shape)
        while (known := has[playlists, others]).any():
            others[known] = torch.randint(SONGS, (int(known.sum()),))
        own = torch.arange(LISTS).repeat_interleave(PER_LIST), torch.tensor(self.songs).flatten()
        drawn = torch.stack([playlists, others, torch.zeros_like(others)], dim=1)
        return torch.cat([torch.stack([*own, torch.ones_like(own[0])], dim=1), drawn])

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One epoch in random order."""
        table = self.rows_at_once() if FIXED else self.rows()  # change: rare-steps
        for batch in table[torch.randperm(len(table))].split(BATCH):
            yield batch[:, 0], batch[:, 1], batch[:, 2].float()


def main() -> None:
    torch.manual_seed(0)
    data, model = Playlists(), Taste()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(EPOCHS):
        for playlists, songs, has in data.batches():  # change: rare-steps
            loss = nn.functional.binary_cross_entropy_with_logits(model(playlists, songs), has)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
