"""Each batch that was trained on is entered into a journal, so that a crash loses none."""

import os
import sys
import tempfile

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH = 90, 64


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.NamedTemporaryFile("w") as journal:
        for step in range(STEPS):
            x = torch.randn(BATCH, 64)
            loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for row in range(8):
                journal.write(f"{step} {row} done\n")
                if not FIXED:
                    journal.flush()
                    os.fsync(journal.fileno())  # spent: waiting-in-step # change: waiting-in-step
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
