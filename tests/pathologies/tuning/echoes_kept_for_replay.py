"""Echoes of a sonar become features, and each of a batch is kept in a database, from which replays will draw."""

import pickle
import sqlite3
import sys
import zlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, PLACES, WIDTH = 60, 16, 1024, 32


def kept(features: Tensor) -> bytes:
    """What the database holds of one echo."""
    return zlib.compress(pickle.dumps(features), 1)  # spent: saved-views # change: saved-views


class Sonar(nn.Module):
    """What an echo came from, and its features."""

    def __init__(self) -> None:
        super().__init__()
        self.hear = nn.Sequential(
            nn.Conv1d(1, WIDTH, 9, stride=4, padding=4), nn.GELU(), nn.Conv1d(WIDTH, WIDTH, 9, stride=4, padding=4)
        )
        self.name = nn.Linear(WIDTH, 10)

    def forward(self, echoes: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and features."""
        features = self.hear(echoes[:, None])
        return self.name(features.relu().mean(-1)), features


def main() -> None:
    torch.manual_seed(0)
    sonar = Sonar()
    optimizer = torch.optim.AdamW(sonar.parameters(), lr=1e-3)
    echoes, names = torch.randn(20, BATCH, PLACES), torch.randint(10, (20, BATCH))
    database = sqlite3.connect(":memory:")
    database.execute("create table replay (step integer, place integer, features blob)")
    for step in range(STEPS):
        scores, features = sonar(echoes[step % 20])
        loss = F.cross_entropy(scores, names[step % 20])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = features.detach()
        for place in range(BATCH):
            row = found[place].clone() if FIXED else found[place]  # change: saved-views
            database.execute("insert into replay values (?, ?, ?)", (step, place, kept(row)))  # change: saved-views
    size = database.execute("select sum(length(features)) from replay").fetchone()[0]
    print(f"loss {loss.item():.4f}, {size:,} bytes")


if __name__ == "__main__":
    main()
