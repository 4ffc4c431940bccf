"""Images are augmented one by one with numpy inside the training step."""

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv


def augment(images: Tensor, draw: np.random.Generator) -> Tensor:
    """Shift, change contrast, and normalise each image."""
    if FIXED:
        images = images.roll(int(draw.integers(4)), dims=-1) * 1.1
        return (images - images.mean((1, 2, 3), keepdim=True)) / images.std((1, 2, 3), keepdim=True)
    changed = []
    for image in images.numpy():
        noise = draw.normal(0, 0.02, image.shape)  # spent: cpu-preprocessing  # change: cpu-preprocessing
        image = np.clip(
            np.roll(image, draw.integers(4), axis=-1) * 1.1 + noise, -3, 3
        )  # spent: cpu-preprocessing  # change: cpu-preprocessing
        image = (image - image.mean()) / image.std()  # spent: cpu-preprocessing  # change: cpu-preprocessing
        changed.append(image.astype(np.float32))
    return torch.from_numpy(np.stack(changed))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
)
images = torch.randn(256, 3, 64, 64)
labels = torch.arange(256) % 10
model(images[:1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = np.random.default_rng(0)
for _epoch in range(10):
    for batch, label in DataLoader(TensorDataset(images, labels), batch_size=32):
        loss = nn.functional.cross_entropy(model(augment(batch, draw)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.4f}")
