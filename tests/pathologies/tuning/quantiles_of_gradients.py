"""A classifier whose gradients are described in a log."""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH, DEPTH = 220, 96, 256, 6
EVERY = 40 if FIXED else 1  # change: logging-in-step


class Journal:
    """Describes the gradients of a model in a file."""

    def __init__(self, model: nn.Module, path: Path) -> None:
        self.model, self.path = model, path
        self.levels = torch.tensor([0.05, 0.5, 0.95])

    def describe(self, gradient: Tensor) -> dict[str, list[float]]:
        """Quantiles and a histogram."""
        values = gradient.abs().flatten()
        return {
            "quantiles": torch.quantile(values, self.levels).tolist(),  # spent: logging-in-step
            "histogram": torch.histc(values, 32).tolist(),  # spent: logging-in-step
        }

    def write(self, step: int) -> None:
        """One line for a step."""
        row = {
            name: self.describe(weight.grad)
            for name, weight in self.model.named_parameters()
            if weight.grad is not None
        }
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **row}) + "\n")


def main() -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(model, Path(folder) / "gradients.jsonl")
        for step in range(STEPS):
            loss = F.cross_entropy(model(torch.randn(BATCH, WIDTH)), torch.randint(10, (BATCH,)))
            optimizer.zero_grad()
            loss.backward()
            if step % EVERY == 0:  # change: logging-in-step
                journal.write(step)  # spent: logging-in-step
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
