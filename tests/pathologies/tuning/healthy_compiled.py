"""A compiled model of fixed shapes: one graph, compiled once."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BACKEND = "eager"  # traces and guards as inductor does, and needs no compiler


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(768, 768) for _ in range(4))
        self.head = nn.Linear(768, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = x + layer(x).relu()
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    model = torch.compile(Net(), backend=BACKEND)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(80 * 64, 768), torch.arange(80 * 64) % 10)
    for x, y in DataLoader(data, batch_size=64):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
