"""Test-time augmentation that decodes JPEG bytes right before each forward pass, the same few pictures every time."""

import io
import sys

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import perfkit

FIXED = "--fixed" in sys.argv
ROUNDS, PICTURES = 80, 8


def picture(number: int) -> bytes:
    """JPEG bytes of a picture of 192 x 192."""
    pixels = np.random.default_rng(number).integers(0, 255, (192, 192, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def decode(data: bytes) -> Tensor:
    """Pixels as the model takes them, (3, 96, 96)."""
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((96, 96))  # spent: cpu-preprocessing
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()
).eval()
files = [picture(number) for number in range(PICTURES)]
decoded = torch.stack([decode(file) for file in files])
total = torch.zeros(())
with torch.inference_mode():
    for _round in perfkit.steps(range(ROUNDS)):
        batch = (
            decoded if FIXED else torch.stack([decode(file) for file in files])
        )  # spent: cpu-preprocessing  # change: cpu-preprocessing
        brightness = torch.empty(PICTURES, 1, 1, 1).uniform_(0.8, 1.2)
        total += model(batch * brightness).mean()
print(f"{total.item():.4f}")
