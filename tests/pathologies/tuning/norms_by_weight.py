"""A deep residual network that logs norms of every weight and gradient in every step."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH, DEPTH, EVERY = 100, 16, 64, 60, 50


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


def logged(model: nn.Module) -> dict[str, float]:
    entry = {}
    for name, weight in model.named_parameters():  # spent: many-small-ops
        assert weight.grad is not None  # spent: many-small-ops
        entry[f"{name}/gradient"] = weight.grad.norm().item()  # spent: many-small-ops
        entry[f"{name}/largest"] = weight.grad.abs().max().item()  # spent: many-small-ops
        entry[f"{name}/weight"] = weight.detach().norm().item()  # spent: many-small-ops
    return entry


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(DEPTH)], nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    history = []
    for step in range(STEPS):
        x, y = torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if not FIXED or step % EVERY == EVERY - 1:
            history.append(logged(model))
        optimizer.step()
    print(f"loss {loss.item():.4f}, {len(history)} entries")


if __name__ == "__main__":
    main()
