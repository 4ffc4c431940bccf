"""Traffic on a network of roads: each crossing hears from those that a road joins it with, by the matrix of roads."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, CROSSINGS, ROADS, WIDTH = 70, 1500, 4500, 96


class Heard(nn.Module):
    """Each crossing's features, and the mean of its neighbours'."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own, self.heard = nn.Linear(width, out), nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor, roads: Tensor) -> Tensor:
        """The next features."""
        return self.own(x) + self.heard(roads @ x)  # spent: sparse-as-dense # change: sparse-as-dense


def main() -> None:
    torch.manual_seed(0)
    ends = torch.randint(CROSSINGS, (2, ROADS))
    roads = torch.zeros(CROSSINGS, CROSSINGS)
    roads[ends[0], ends[1]] = roads[ends[1], ends[0]] = 1.0
    roads /= roads.sum(1, keepdim=True).clamp_min(1)
    if FIXED:
        roads = roads.to_sparse_csr()
    first, second, last = Heard(WIDTH, WIDTH), Heard(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    weights = [*first.parameters(), *second.parameters(), *last.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-3, fused=True)
    speeds = torch.rand(20, CROSSINGS, WIDTH)
    for step in range(STEPS):
        hidden = F.relu(second(F.relu(first(speeds[step % 20], roads)), roads))
        loss = F.mse_loss(last(hidden).squeeze(-1), speeds[step % 20, :, 0])
        optimizer.zero_grad()
        loss.backward()  # spent: sparse-as-dense
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
