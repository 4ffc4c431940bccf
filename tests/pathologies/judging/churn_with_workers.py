"""Customers who leave: a table in memory, cut into batches, and a small network."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FIXED = "--fixed" in sys.argv
CUSTOMERS, COLUMNS, BATCH, EPOCHS = 60_000, 36, 128, 3


class Customers(Dataset):
    """Rows of the table; takes a list of row numbers at once."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(6)
        self.columns = torch.randn(CUSTOMERS, COLUMNS, generator=generator)
        noise = torch.randn(CUSTOMERS, generator=generator)
        self.left = ((self.columns[:, :6].sum(1) + noise) > 2).float()

    def __len__(self) -> int:
        return CUSTOMERS

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        return self.columns[rows], self.left[rows]


def main() -> None:
    torch.manual_seed(0)
    customers = Customers()
    batches = BatchSampler(RandomSampler(customers), BATCH, drop_last=True)
    workers = 0 if FIXED else 2  # change: input-bound
    loader = DataLoader(  # change: input-bound
        customers, sampler=batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    model = nn.Sequential(
        nn.Linear(COLUMNS, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(EPOCHS):
        total = torch.zeros(())
        for columns, left in loader:  # spent: input-bound
            loss = nn.functional.binary_cross_entropy_with_logits(model(columns).squeeze(1), left)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / len(batches):.4f}")


if __name__ == "__main__":
    main()
