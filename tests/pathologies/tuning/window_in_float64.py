"""A spectrogram loss whose window comes from numpy in float64 and turns all that follows into float64."""

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
FRAME, FRAMES = 512, 24


class SpectralLoss(nn.Module):
    """Distance of the spectra of frames, (batch, FRAMES, FRAME)."""

    def __init__(self) -> None:
        super().__init__()
        window = torch.from_numpy(np.hanning(FRAME))  # change: float64-in-step
        self.register_buffer("window", window.float() if FIXED else window)  # change: float64-in-step

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        spectra = torch.fft.rfft(torch.stack([one, other]) * self.window)  # spent: float64-in-step
        power = (spectra.real.square() + spectra.imag.square() + 1e-6).log()  # spent: float64-in-step
        return (power[0] - power[1]).abs().mean().float()  # spent: float64-in-step


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(FRAME, 48), nn.Tanh(), nn.Linear(48, FRAME))
loss_of = SpectralLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for frames in DataLoader(torch.randn(70, 8, FRAMES, FRAME), batch_size=None):
    loss = loss_of(model(frames), frames)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
