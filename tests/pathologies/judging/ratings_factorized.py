"""Ratings of films: users and films as vectors, trained on a log of ratings."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
USERS, FILMS, WIDTH, BATCH, BATCHES = 150_000, 50_000, 32, 2048, 60


class Log(Dataset):
    """Batches of (user, film, rating), read from one long log."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        rows = BATCH * BATCHES
        self.users = torch.randint(USERS, (rows,), generator=generator)
        self.films = torch.randint(FILMS, (rows,), generator=generator)
        self.ratings = torch.randint(1, 6, (rows,), generator=generator).float()

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.users[rows], self.films[rows], self.ratings[rows]


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, WIDTH), nn.Embedding(FILMS, WIDTH)
        self.tower = nn.Sequential(nn.Linear(2 * WIDTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.score = nn.Linear(128, 1)

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        pairs = torch.cat([self.user(users), self.film(films)], dim=1)
        return self.score(self.tower(pairs)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    model = Factors()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02, fused=FIXED or None)  # change: unfused-optimizer
    for epoch in range(1, 3):
        total = torch.zeros(())
        for users, films, ratings in DataLoader(Log(), batch_size=None):
            loss = nn.functional.mse_loss(model(users, films), ratings)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # spent: unfused-optimizer
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / BATCHES:.4f}")


if __name__ == "__main__":
    main()
