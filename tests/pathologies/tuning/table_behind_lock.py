"""Features come from a table that another thread refreshes; both take the table's lock."""

import sys
import threading
import time

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, ROWS, WIDTH = 90, 128, 2000, 64


class Table:
    """Rows of features, refreshed from a remote store in the background."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows = torch.randn(ROWS, WIDTH)
        self.over = threading.Event()
        threading.Thread(target=self.refresh, daemon=True).start()

    def refresh(self) -> None:
        """Fetch new rows until training is over."""
        while not self.over.is_set():
            if FIXED:
                fetched = self.fetch()
                with self.lock:
                    self.rows = fetched
            else:
                with self.lock:  # change: waiting-in-step
                    self.rows = self.fetch()
            time.sleep(0.002)

    def fetch(self) -> Tensor:
        """The rows of the remote store."""
        time.sleep(0.02)
        return self.rows * 0.999

    def get(self, which: Tensor) -> Tensor:
        """Some rows."""
        with self.lock:  # spent: waiting-in-step
            return self.rows[which]


def main() -> None:
    torch.manual_seed(0)
    table = Table()
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = table.get(torch.randint(ROWS, (BATCH,)))  # spent: waiting-in-step
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    table.over.set()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
