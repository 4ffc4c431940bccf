"""Molecular graphs with return probabilities of random walks as features of their atoms."""

import sys

import torch
import torch_geometric.transforms as T
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool
from torch_geometric.utils import to_dense_adj, to_undirected

FIXED = "--fixed" in sys.argv
WALK = 16


class Molecules(torch.utils.data.Dataset[Data]):
    """Graphs in memory; ``transform`` runs whenever one is taken, ``pre_transform`` once."""

    def __init__(
        self, count: int, transform: T.BaseTransform | None = None, pre_transform: T.BaseTransform | None = None
    ):
        self.transform = transform
        self.graphs = [one if pre_transform is None else pre_transform(one) for one in map(molecule, range(count))]

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        graph = self.graphs[index]
        return graph if self.transform is None else self.transform(graph)  # spent: input-bound


class WalkFeatures(T.BaseTransform):
    """Probabilities to be back after 1, 2, ... steps."""

    def forward(self, data: Data) -> Data:
        step = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0]
        step = step / step.sum(1, keepdim=True).clamp(min=1)
        power, back = step, []
        for _ in range(WALK):
            back.append(power.diagonal())
            power = power @ step  # spent: input-bound
        data.walk = torch.stack(back, 1)
        return data


def molecule(seed: int) -> Data:
    """A tree of atoms with some rings."""
    draw = torch.Generator().manual_seed(seed)
    atoms = int(torch.randint(18, 40, (), generator=draw))
    tree = torch.stack(
        [torch.arange(1, atoms), (torch.rand(atoms - 1, generator=draw) * torch.arange(1, atoms)).long()]
    )
    rings = torch.randint(0, atoms, (2, atoms // 8), generator=draw)
    return Data(
        x=torch.randint(0, 9, (atoms,), generator=draw),
        edge_index=to_undirected(torch.cat([tree, rings], 1)),
        y=torch.randn(1, generator=draw),
    )


class Gin(nn.Module):
    """A property of a molecule."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.atoms = nn.Embedding(9, width)
        self.walks = nn.Linear(WALK, width)
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))) for _ in range(3)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, data: Data) -> Tensor:
        x = self.atoms(data.x) + self.walks(data.walk)
        for conv in self.convs:
            x = conv(x, data.edge_index).relu()
        return self.head(global_add_pool(x, data.batch)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    walks = {"pre_transform": WalkFeatures()} if FIXED else {"transform": WalkFeatures()}  # change: input-bound
    data = Molecules(800, **walks)  # change: input-bound
    loader = DataLoader(data, batch_size=64, shuffle=True)  # change: input-bound
    model = Gin()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(8):
        for batch in loader:  # spent: input-bound
            loss = nn.functional.mse_loss(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
