"""A video classifier whose picture network sees the frames of a clip one at a time."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
BATCH, FRAMES, SIDE, STEPS = 2, 24, 16, 120


def block(inner: int, outer: int) -> nn.Sequential:
    """Halves the picture."""
    return nn.Sequential(nn.Conv2d(inner, outer, 3, 2, 1), nn.GroupNorm(4, outer), nn.SiLU())


class VideoNet(nn.Module):
    def __init__(self, actions: int = 8) -> None:
        super().__init__()
        self.backbone = nn.Sequential(block(3, 16), block(16, 32), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.over_time = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, actions)

    def features(self, clips: Tensor) -> Tensor:
        """A vector per frame, (clips, frames, 64)."""
        if FIXED:
            return self.backbone(clips.flatten(0, 1)).unflatten(0, clips.shape[:2])
        vectors = [
            self.backbone(clips[:, time])  # spent: loop-over-samples # change: loop-over-samples
            for time in range(clips.shape[1])  # spent: loop-over-samples # change: loop-over-samples
        ]
        return torch.stack(vectors, dim=1)

    def forward(self, clips: Tensor) -> Tensor:
        states, _ = self.over_time(self.features(clips))
        return self.head(states[:, -1])


def main() -> None:
    torch.manual_seed(0)
    clips = torch.randn(32, FRAMES, 3, SIDE, SIDE)
    actions = torch.randint(0, 8, (32,))
    model = VideoNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(clips)
        loss = nn.functional.cross_entropy(model(clips[rows]), actions[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    print(f"mean loss {torch.stack(losses).mean().item():.4f}")


if __name__ == "__main__":
    main()
