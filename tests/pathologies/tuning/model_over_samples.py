"""A classifier that sends the samples of a batch through its layers one at a time."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
CLASSES = 5


class SensorNet(nn.Module):
    """Convolutions over (channels, time) of one sample or of a batch of them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(6, 48, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(48, 48, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(192, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def scores_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Scores, (batch, CLASSES)."""
    if FIXED:
        return model(batch)
    scores = []
    for sample in batch:  # spent: loop-over-samples  # change: loop-over-samples
        logits = model(sample.unsqueeze(0))  # spent: loop-over-samples  # change: loop-over-samples
        scores.append(logits)
    return torch.cat(scores)


torch.manual_seed(0)
model = SensorNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
signals, labels = torch.randn(70 * 32, 6, 160), torch.arange(70 * 32) % CLASSES
for x, y in DataLoader(TensorDataset(signals, labels), batch_size=32):
    loss = nn.functional.cross_entropy(scores_of(model, x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
