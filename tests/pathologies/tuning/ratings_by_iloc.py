"""A recommender that reads its ratings from a pandas table, one row after another."""

import itertools
import sys

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FIXED = "--fixed" in sys.argv
USERS, ITEMS, RATINGS, BATCH = 3000, 1200, 25600, 128
GENRES = ["drama", "comedy", "crime", "documentary", "animation"]


def read_ratings() -> pd.DataFrame:
    """Who rated what, and what is known of both."""
    rng = np.random.default_rng(7)
    table = pd.DataFrame(
        {
            "user": rng.integers(USERS, size=RATINGS),
            "item": rng.integers(ITEMS, size=RATINGS),
            "age": rng.integers(16, 80, size=RATINGS).astype(np.float32),
            "year": rng.integers(1950, 2024, size=RATINGS),
            "genre": pd.Categorical(rng.choice(GENRES, size=RATINGS), categories=GENRES),
        }
    )
    table["stars"] = ((table["user"] * 7 + table["item"] * 3) % 5 + 1).astype(np.float32)
    table["genre_code"] = table["genre"].cat.codes.astype(np.int64)
    table["age"] = (table["age"] - table["age"].mean()) / table["age"].std()
    table["year"] = ((table["year"] - 1990) / 20).astype(np.float32)
    return table


class Ratings(Dataset):
    """The ratings, one by one."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        row = self.table.iloc[index]  # spent: input-bound # change: input-bound
        ids = torch.tensor([row["user"], row["item"], row["genre_code"]])  # spent: input-bound # change: input-bound
        numbers = torch.tensor([row["age"], row["year"]], dtype=torch.float32)  # spent: input-bound
        return ids, numbers, torch.tensor(row["stars"], dtype=torch.float32)  # spent: input-bound


class RatingsAsTensors(Dataset):
    """The same ratings by the batch."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.ids = torch.from_numpy(table[["user", "item", "genre_code"]].to_numpy(np.int64, copy=True))
        self.numbers = torch.from_numpy(table[["age", "year"]].to_numpy(np.float32, copy=True))
        self.stars = torch.from_numpy(table["stars"].to_numpy(np.float32, copy=True))

    def __len__(self) -> int:
        return len(self.stars)

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        return self.ids[rows], self.numbers[rows], self.stars[rows]


class TwoTower(nn.Module):
    """Embeddings of user, item and genre, and a tower over all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 32), nn.Embedding(ITEMS, 32)
        self.genre = nn.Embedding(len(GENRES), 8)
        widths = [32 + 32 + 8 + 2, 512, 512, 128]
        layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
        self.tower = nn.Sequential(*layers, nn.Linear(128, 1))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        parts = [self.user(ids[:, 0]), self.item(ids[:, 1]), self.genre(ids[:, 2]), numbers]
        return self.tower(torch.cat(parts, dim=1)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    table = read_ratings()
    if FIXED:
        rated = RatingsAsTensors(table)
        loader = DataLoader(rated, batch_size=None, sampler=BatchSampler(RandomSampler(rated), BATCH, drop_last=True))
    else:
        rows = Ratings(table)
        loader = DataLoader(rows, batch_size=BATCH, shuffle=True, drop_last=True)  # change: input-bound
    model = TwoTower()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seen = torch.zeros(())
    for step, (ids, numbers, stars) in enumerate(loader, start=1):  # spent: input-bound
        loss = nn.functional.mse_loss(model(ids, numbers), stars)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += loss.detach()
        if step % 50 == 0:
            print(f"{step}: {seen.item() / 50:.3f}")
            seen.zero_()


if __name__ == "__main__":
    main()
