"""The deep energy method: a network finds how a loaded beam bends, as what minimizes its elastic energy."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, POINTS, WIDTH, LAME, SHEAR, LOAD = 70, 512, 96, 0.6, 0.4, 0.05


class Beam(nn.Module):
    """The displacement of a point; none at the clamped end."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(3, WIDTH), nn.SiLU()]
        for _ in range(3):
            layers += [nn.Linear(WIDTH, WIDTH), nn.SiLU()]
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 3))

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.net(torch.cat([x, y, z], dim=1)) * x


def slopes(of: Tensor, by: list[Tensor]) -> list[Tensor]:
    """The derivative of ``of`` by each of these."""
    if FIXED:
        return list(torch.autograd.grad(of.sum(), by, create_graph=True))
    total, found = of.sum(), []
    for one in by:
        found += torch.autograd.grad(total, one, create_graph=True)  # spent: retained-graph # change: retained-graph
    return found


def strain_energy(moved: Tensor, at: list[Tensor]) -> Tensor:
    """The mean elastic energy of a volume."""
    gradient = torch.stack([torch.cat(slopes(moved[:, axis], at), 1) for axis in range(3)], 1)  # spent: retained-graph
    strain = (gradient + gradient.transpose(1, 2)) / 2
    trace = strain.diagonal(dim1=1, dim2=2).sum(1)
    return (LAME / 2 * trace.square() + SHEAR * strain.square().sum((1, 2))).mean()


def main() -> None:
    torch.manual_seed(0)
    model = Beam()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(STEPS):
        at = [torch.rand(POINTS, 1, requires_grad=True) for _ in range(3)]
        moved = model(*at)
        loss = strain_energy(moved, at) + LOAD * moved[:, 2].mean()  # spent: retained-graph
        optimizer.zero_grad()
        loss.backward()  # spent: retained-graph
        optimizer.step()
    print(f"energy {loss.item():.4f}")


if __name__ == "__main__":
    main()
