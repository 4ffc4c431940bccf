"""Tide gauges: each layer filters whole series with learned kernels, by a Fourier transform of just enough places."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, GAUGES, PLACES = 60, 6, 48, 756


class LongFilter(nn.Module):
    """Causal filters as long as the series, one per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(GAUGES, PLACES) / PLACES)
        self.mix = nn.Linear(GAUGES, GAUGES)

    def forward(self, x: Tensor) -> Tensor:
        """The filtered series, (batch, channels, places)."""
        size = 2048 if FIXED else 2 * PLACES - 1  # change: slow-fft-length
        signal = torch.fft.rfft(x, n=size)  # spent: slow-fft-length # change: slow-fft-length
        kernel = torch.fft.rfft(self.kernel, n=size)  # spent: slow-fft-length # change: slow-fft-length
        both = torch.fft.irfft(signal * kernel, n=size)  # spent: slow-fft-length # change: slow-fft-length
        y = both[..., :PLACES]
        return x + F.gelu(self.mix(y.transpose(1, 2))).transpose(1, 2)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(LongFilter(), LongFilter(), nn.Conv1d(GAUGES, 1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    series = torch.randn(20, BATCH, GAUGES, PLACES)
    for step in range(STEPS):
        heights = series[step % 20]
        loss = F.mse_loss(model(heights).squeeze(1), heights.mean(1))
        optimizer.zero_grad()
        loss.backward()  # spent: slow-fft-length
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
