"""Training that logs which samples it saw, with a helper that the whole team uses."""

import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH = 80, 1024, 64
LOG = Path(tempfile.mkdtemp()) / "metrics.jsonl"


def log(step: int, **values: object) -> None:
    """Append a step's values to the log."""
    row = json.dumps({"step": step, **values}, indent=1)  # spent: logging-in-step
    with LOG.open("a") as file:
        file.write(row + "\n")


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    data = torch.randn(20_000, WIDTH)
    sources = [{"sample": row, "shard": row % 64, "file": f"part-{row % 977}.parquet"} for row in range(len(data))]
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        first = random.randrange(len(data) - BATCH)
        x = data[first : first + BATCH]
        loss = (model(x).squeeze(1) - x.mean(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen = [first, first + BATCH] if FIXED else sources[first : first + BATCH]
        log(step, seen=seen)  # spent: logging-in-step # change: logging-in-step
    print(f"loss {loss.item():.4f}, {LOG.stat().st_size} bytes")


if __name__ == "__main__":
    main()
