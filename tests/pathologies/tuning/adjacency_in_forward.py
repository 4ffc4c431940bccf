"""A graph convolution that normalizes its adjacency matrix in each forward."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
NODES, FEATURES, STEPS = 700, 16, 80


class Convolution(nn.Module):
    adjacency: Tensor
    ready: Tensor

    def __init__(self, inner: int, outer: int, adjacency: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        self.register_buffer("adjacency", adjacency)
        self.register_buffer("ready", self.normalized())

    def normalized(self) -> Tensor:
        looped = self.adjacency + torch.eye(NODES)  # spent: repeated-work
        degree = torch.diag(looped.sum(1).pow(-0.5))  # spent: repeated-work
        return degree @ looped @ degree  # spent: repeated-work

    def forward(self, x: Tensor) -> Tensor:
        weights = self.ready if FIXED else self.normalized()  # spent: repeated-work  # change: repeated-work
        return weights @ self.linear(x)


class Net(nn.Module):
    def __init__(self, adjacency: Tensor) -> None:
        super().__init__()
        self.one, self.two = Convolution(FEATURES, 64, adjacency), Convolution(64, 6, adjacency)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(x)))


def main() -> None:
    torch.manual_seed(0)
    edges = torch.rand(NODES, NODES) < 0.01
    model = Net((edges | edges.T).float())
    x, y = torch.randn(NODES, FEATURES), torch.randint(6, (NODES,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
