"""Levels of rivers, forecast from the last days by a recurrent network, with validation once per epoch."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, WINDOWS, HELD_OUT, BATCH, GAUGES, DAYS, WIDTH = 2, 1920, 160, 48, 12, 60, 160


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(GAUGES, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, GAUGES)

    def forward(self, days: Tensor) -> Tensor:
        states, _ = self.recurrent(days)
        return self.head(states[:, -1])


@torch.no_grad()
def validate(model: Forecaster, loader: DataLoader) -> float:
    """Mean absolute error."""
    model.eval()
    errors = [(model(days) - following).abs().mean() for days, following in loader]
    model.train()
    return torch.stack(errors).mean().item()


def main() -> None:
    torch.manual_seed(0)
    levels = torch.randn(WINDOWS + HELD_OUT, DAYS + 1, GAUGES).cumsum(1) / 8
    days, following = levels[:, :-1], levels[:, -1]
    train = DataLoader(TensorDataset(days[:WINDOWS], following[:WINDOWS]), batch_size=BATCH, shuffle=True)
    held_out = DataLoader(TensorDataset(days[WINDOWS:], following[WINDOWS:]), batch_size=BATCH)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(EPOCHS):
        for x, y in train:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: error {validate(model, held_out):.4f}")


if __name__ == "__main__":
    main()
