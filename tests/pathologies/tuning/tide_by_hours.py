"""Forecasts of a tide gauge: the state of a recurrent network goes on from hour to hour of a day."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, HOURS, MINUTES, WIDTH = 90, 48, 6, 12, 96


class Gauge(nn.Module):
    """Predicts the next values of one hour, given the state that the hour before left."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(1, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, hour: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        values, state = self.layer(hour[:, :, None], state)
        return self.head(values).squeeze(2), state


def train_day(model: Gauge, day: Tensor) -> float:
    """Adds up the gradients of one day; the state carries them through all of its hours."""
    state, losses = None, []
    for start in range(0, HOURS * MINUTES, MINUTES):
        answer, state = model(day[:, start : start + MINUTES], state)
        loss = F.mse_loss(answer, day[:, start + 1 : start + MINUTES + 1])
        losses.append(loss)
        if not FIXED:
            loss.backward(retain_graph=True)  # spent: retained-graph # change: retained-graph
    if FIXED:
        sum(losses).backward()
    return losses[-1].item()


def main() -> None:
    torch.manual_seed(0)
    model = Gauge()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        time = torch.rand(BATCH, 1) * 12 + torch.arange(HOURS * MINUTES + 1) / 20
        optimizer.zero_grad()
        loss = train_day(model, torch.sin(time))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss:.4f}")


if __name__ == "__main__":
    main()
