"""A convolutional network that copies its images to another layout and back in every block, for one norm."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
CHANNELS = 32


class Block(nn.Module):
    """Depth-wise convolution, a norm over channels, and a gain per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        if FIXED:
            # The images lie channels last in memory, where both views cost nothing.
            return x + self.norm(self.mix(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.mix(x).permute(0, 2, 3, 1).contiguous()  # spent: layout-conversion  # change: layout-conversion
        return (
            x + self.norm(y).permute(0, 3, 1, 2).contiguous()
        )  # spent: layout-conversion  # change: layout-conversion


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 4, stride=2), *(Block() for _ in range(6)))
    head = nn.Linear(CHANNELS, 10)
    images, labels = torch.randn(60 * 8, 3, 64, 64), torch.arange(60 * 8) % 10
    if FIXED:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    for x, y in DataLoader(TensorDataset(images, labels), batch_size=8):
        if FIXED:
            x = x.contiguous(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(head(model(x).mean((2, 3))), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
