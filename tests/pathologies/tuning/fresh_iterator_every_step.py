"""A training by number of steps that takes each batch from a new iterator of its loader."""

import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

FIXED = "--fixed" in sys.argv
STEPS, ROWS, FEATURES = 150, 400_000, 24


def forever(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[Sequence[Tensor]]:
    while True:
        yield from loader


def main() -> None:
    torch.manual_seed(0)
    table = TensorDataset(torch.randn(ROWS, FEATURES), torch.randn(ROWS))
    batches_of = BatchSampler(RandomSampler(table), batch_size=128, drop_last=True)
    loader = DataLoader(table, sampler=batches_of, batch_size=None)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = forever(loader)
    for _ in range(STEPS):
        x, y = next(batches) if FIXED else next(iter(loader))  # spent: input-bound  # change: input-bound
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
