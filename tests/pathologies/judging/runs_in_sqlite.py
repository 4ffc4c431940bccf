"""Contrastive learning of pairs of views; each step's numbers go into the laboratory's database of runs."""

import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH = 300, 64, 96


class Runs:
    """The table of steps."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        self.connection.execute("create table steps (step integer, name text, value real, at real)")

    def note(self, step: int, **values: float) -> None:
        """Store the numbers of a step."""
        rows = [(step, name, value, time.time()) for name, value in values.items()]
        for row in rows:
            self.connection.execute("insert into steps values (?, ?, ?, ?)", row)
            if not FIXED:
                self.connection.commit()  # spent: logging-in-step # change: logging-in-step
        if FIXED and step % 100 == 99:
            self.connection.commit()


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two views of each sample, each with its own noise and missing columns."""
    return tuple((x + 0.1 * torch.randn_like(x)) * (torch.rand_like(x) > 0.2) for _ in range(2))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    runs = Runs(folder / "runs.db")
    encoder = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
    samples = torch.randn(2048, WIDTH)
    for step in range(STEPS):
        one, other = views(samples[torch.randint(len(samples), (BATCH,))])
        similar = nn.functional.normalize(encoder(one), dim=1) @ nn.functional.normalize(encoder(other), dim=1).T
        loss = nn.functional.cross_entropy(similar / 0.1, torch.arange(BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        matched = (similar.argmax(1) == torch.arange(BATCH)).float().mean()
        runs.note(step, loss=loss.item(), matched=matched.item())  # spent: logging-in-step
    print(f"loss {loss.item():.4f}, matched {matched.item():.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
