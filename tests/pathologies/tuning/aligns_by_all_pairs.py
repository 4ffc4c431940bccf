"""An encoder of sketches that is pulled to the features of their photos, by the similarity of each pair."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, PIXELS, WIDTH, FEATURES = 80, 1024, 256, 320, 256


def agreement(sketches: Tensor, photos: Tensor) -> Tensor:
    """The cosine of each sketch and its photo."""
    sketches, photos = F.normalize(sketches, dim=-1), F.normalize(photos, dim=-1)
    if FIXED:
        return (sketches * photos).sum(-1)
    return (sketches @ photos.T).diagonal()  # spent: unused-rows # change: unused-rows


def main() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(PIXELS, WIDTH), nn.GELU(), nn.Linear(WIDTH, FEATURES))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3, fused=True)
    sketches = torch.randn(20, BATCH, PIXELS)
    photos = torch.randn(20, BATCH, FEATURES)
    for step in range(STEPS):
        alike = agreement(encoder(sketches[step % 20]), photos[step % 20])
        loss = (1 - alike).mean()
        optimizer.zero_grad()
        loss.backward()  # spent: unused-rows
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
