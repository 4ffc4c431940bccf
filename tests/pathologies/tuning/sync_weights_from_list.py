"""Class weights are made from a Python list, on the scores' device, in every step."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
WEIGHTS = [0.2, 1.0, 1.5, 3.0]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Grader(nn.Module):
    """Grades grey pictures of 40 x 40."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 5, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(64 * 49, len(WEIGHTS))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def main() -> None:
    torch.manual_seed(0)
    pictures, grades = torch.randn(60 * 64, 1, 40, 40), torch.arange(60 * 64) % len(WEIGHTS)
    model = Grader().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    once = torch.tensor(WEIGHTS).to(device)
    for x, y in DataLoader(TensorDataset(pictures, grades), batch_size=64, pin_memory=device.type == "cuda"):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        scores = model(x)
        weight = once if FIXED else scores.new_tensor(WEIGHTS)  # spent: sync-in-step  # change: sync-in-step
        loss = nn.functional.cross_entropy(scores, y, weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
