"""Node classification on a citation graph with PyTorch Geometric, on the whole graph in each epoch."""

import sys

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

FIXED = "--fixed" in sys.argv


class Gcn(nn.Module):
    """Two graph convolutions, as in Kipf and Welling."""

    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.first = GCNConv(features, width, cached=FIXED)  # change: repeated-work
        self.second = GCNConv(width, classes, cached=FIXED)  # change: repeated-work

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()  # spent: repeated-work
        x = nn.functional.dropout(x, 0.5, self.training)
        return self.second(x, edge_index)  # spent: repeated-work


def build_graph(papers: int, citations: int) -> Data:
    """A paper cites earlier papers of its own field more often."""
    field = torch.randint(0, 7, (papers,))
    source, target = torch.randint(0, papers, (2, citations))
    kept = (field[source] == field[target]) | (torch.rand(citations) < 0.3)
    edges = torch.stack([source[kept], target[kept]])
    x = torch.randn(papers, 64) + nn.functional.one_hot(field, 64)
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=field, train_mask=torch.rand(papers) < 0.1)


def main() -> None:
    torch.manual_seed(0)
    graph = build_graph(20_000, 400_000)
    model = Gcn(64, 16, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=True)
    for _ in range(100):
        model.train()
        optimizer.zero_grad()
        out = model(graph.x, graph.edge_index)
        loss = nn.functional.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
