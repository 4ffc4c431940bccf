"""A classifier with a penalty on the largest singular value of each layer, from a whole decomposition."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH = 60, 256, 256


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 10)
        self.vectors = [nn.functional.normalize(torch.randn(WIDTH), dim=0) for _ in range(3)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)

    def penalty(self) -> Tensor:
        total = torch.zeros(())
        for at, layer in enumerate(self.layers):
            if FIXED:
                with torch.no_grad():
                    left = nn.functional.normalize(layer.weight @ self.vectors[at], dim=0)
                    self.vectors[at] = nn.functional.normalize(layer.weight.T @ left, dim=0)
                total = total + left @ layer.weight @ self.vectors[at]
            else:
                total = total + torch.linalg.svdvals(layer.weight)[0]  # spent: dominating-op  # change: dominating-op
        return total


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))
        loss = nn.functional.cross_entropy(model(x), y) + 1e-3 * model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
