"""A dataset that shares its features between loader workers through a multiprocessing manager."""

import multiprocessing
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
SAMPLES, PARTS, WIDTH = 80 * 16, 24, 64


class Features(Dataset[Tensor]):
    """A sample is the mean of PARTS features."""

    def __init__(self, store: dict[int, bytes]) -> None:
        self.store = store

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        keys = [(index * 31 + part) % 500 for part in range(PARTS)]
        parts = bytearray().join(self.store[key] for key in keys)  # spent: input-bound
        return torch.frombuffer(parts, dtype=torch.float32).reshape(PARTS, WIDTH).mean(0)


def main() -> None:
    torch.manual_seed(0)
    store: dict[int, bytes] = {} if FIXED else multiprocessing.Manager().dict()  # change: input-bound
    for key in range(500):
        store[key] = torch.randn(WIDTH).numpy().tobytes()
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(Features(store), batch_size=16, num_workers=2):  # spent: input-bound
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
