"""A loop that goes through the whole validation set every eight steps."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
EVERY = 1000 if FIXED else 8  # change: validation-too-often


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> Tensor:
    """The share of right answers."""
    model.eval()
    right = torch.zeros(())
    for x, y in loader:
        right += (model(x).argmax(1) == y).float().mean()
    model.train()
    return right / len(loader)


def main() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(120, 32, 200), torch.randint(0, 20, (120, 32))
    train = DataLoader(TensorDataset(inputs[:80], labels[:80]), batch_size=None)
    held_out = DataLoader(TensorDataset(inputs[80:], labels[80:]), batch_size=None)
    model = nn.Sequential(nn.Linear(200, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shares = []
    for step, (x, y) in enumerate(train, start=1):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            shares.append(validate(model, held_out))  # spent: validation-too-often  # change: validation-too-often
    shares.append(validate(model, held_out))
    print(f"loss {loss.item():.4f} right {shares[-1].item():.3f}")


if __name__ == "__main__":
    main()
