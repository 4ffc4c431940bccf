"""A recurrent forecaster: torch's own LSTM, clipped gradients, a learning rate that falls."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    """The next value of a series, from its last 80."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.LSTM(8, 128, batch_first=True)
        self.head = nn.Linear(128, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.read(x)[0][:, -1])


def main() -> None:
    torch.manual_seed(0)
    series = torch.randn(60 * 32, 80, 8).cumsum(1) * 0.1
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    for x, y in DataLoader(TensorDataset(series, series[:, -1:, 0]), batch_size=32):
        loss = nn.functional.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        falling.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
