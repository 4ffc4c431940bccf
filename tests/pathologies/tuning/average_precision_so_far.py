"""A detector of rare frames that sorts all scores of the epoch again after each batch, for its average precision."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
BATCH, FRAMES, STEPS = 32, 64, 140


class AveragePrecision:
    """The area under the curve of precision over recall."""

    def __init__(self) -> None:
        self.scores: list[Tensor] = []
        self.truths: list[Tensor] = []

    def update(self, scores: Tensor, truths: Tensor) -> None:
        """Add a batch."""
        self.scores.append(scores.detach().flatten())
        self.truths.append(truths.flatten())

    def compute(self) -> Tensor:
        """Over all that was added."""
        order = torch.cat(self.scores).argsort(descending=True)  # spent: growing-step
        hits = torch.cat(self.truths)[order].cumsum(0)  # spent: growing-step
        ranks = torch.arange(1, len(hits) + 1)  # spent: growing-step
        gained = hits.diff(prepend=torch.zeros(1)) > 0  # spent: growing-step
        return (hits / ranks)[gained].mean()  # spent: growing-step


def main() -> None:
    torch.manual_seed(0)
    sounds = torch.randn(STEPS * BATCH, 32, FRAMES)
    events = (torch.rand(STEPS * BATCH, FRAMES) < 0.05).float()
    model = nn.Sequential(
        nn.Conv1d(32, 96, 5, padding=2), nn.ReLU(), nn.Conv1d(96, 96, 5, padding=2), nn.ReLU(), nn.Conv1d(96, 1, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0))
    metric, history = AveragePrecision(), []
    for step, (x, y) in enumerate(DataLoader(TensorDataset(sounds, events), BATCH), start=1):
        scores = model(x).squeeze(1)
        loss = loss_of(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(scores, y)
        if not FIXED or step == STEPS:  # change: growing-step
            history.append(metric.compute())  # spent: growing-step # change: growing-step
    print(f"loss {loss.item():.4f} average precision {history[-1].item():.3f}")


if __name__ == "__main__":
    main()
