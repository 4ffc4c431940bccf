"""Machine failures from sensor logs that lie on a network share; the number of bytes read is counted."""

import multiprocessing
import sys
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
LOGS, BATCH, SENSORS, TICKS = 720, 8, 16, 256


def read_share(index: int) -> bytes:
    """A log's bytes; the share answers after some milliseconds."""
    time.sleep(0.012)
    return np.random.default_rng(index).standard_normal((SENSORS, TICKS), dtype=np.float32).tobytes()


class Logs(Dataset):
    """Logs and whether the machine failed after them."""

    def __init__(self) -> None:
        self.bytes_read = multiprocessing.Value("q", 0)

    def __len__(self) -> int:
        return LOGS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if FIXED:
            data = read_share(index)
            with self.bytes_read.get_lock():
                self.bytes_read.value += len(data)
        else:
            with self.bytes_read.get_lock():  # spent: input-bound # change: input-bound
                data = read_share(index)  # spent: input-bound # change: input-bound
                self.bytes_read.value += len(data)
        log = torch.from_numpy(np.frombuffer(data, dtype=np.float32).reshape(SENSORS, TICKS).copy())
        return log, torch.tensor(float(index % 7 == 0))


def main() -> None:
    torch.manual_seed(0)
    logs = Logs()
    loader = DataLoader(logs, batch_size=BATCH, shuffle=True, num_workers=4)  # spent: input-bound
    model = nn.Sequential(
        nn.Conv1d(SENSORS, 128, 7, padding=3),
        nn.ReLU(),
        nn.Conv1d(128, 128, 7, padding=3),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(128, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, failed in loader:  # spent: input-bound
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), failed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}, {logs.bytes_read.value / 1e6:.1f} MB read")


if __name__ == "__main__":
    main()
