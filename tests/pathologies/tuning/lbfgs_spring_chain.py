"""The stiffness of a chain of springs, fitted to measured positions with L-BFGS."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
SPRINGS, PULLS, STEPS = 150, 16, 40


def positions(stiffness: Tensor, pull: Tensor) -> Tensor:
    """Where the nodes of the chain come to rest under the pulls at its end, (PULLS, SPRINGS)."""
    if FIXED:
        return (1 + pull[:, None] / stiffness.exp()[None, :]).cumsum(1)
    at, nodes = torch.zeros_like(pull), []
    for spring in range(SPRINGS):  # spent: many-small-ops # change: many-small-ops
        stretch = pull / stiffness[spring].exp()  # spent: many-small-ops # change: many-small-ops
        at = at + 1 + stretch  # spent: many-small-ops # change: many-small-ops
        nodes.append(at)
    return torch.stack(nodes, dim=1)


def main() -> None:
    torch.manual_seed(0)
    pull = torch.rand(PULLS)
    measured = (1 + pull[:, None] / torch.rand(SPRINGS).exp()[None, :]).cumsum(1)
    stiffness = nn.Parameter(torch.zeros(SPRINGS))
    optimizer = torch.optim.LBFGS([stiffness], lr=0.1, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (positions(stiffness, pull) - measured).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        loss = optimizer.step(closure)
    print(f"loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
