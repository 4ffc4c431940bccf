"""Node classification of a citation graph, full batch, PyG."""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCNConv

FIXED = "--fixed" in sys.argv


class GCN(torch.nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv1 = GCNConv(features, hidden, cached=FIXED)  # change: repeated-work
        self.conv2 = GCNConv(hidden, classes, cached=FIXED)  # change: repeated-work

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()  # spent: repeated-work # change: repeated-work
        x = F.dropout(x, 0.5, self.training)
        return self.conv2(x, edge_index)  # spent: repeated-work # change: repeated-work


def main() -> None:
    torch.manual_seed(0)
    nodes, edges = 4000, 160000
    x = torch.randn(nodes, 8)
    y = torch.randint(0, 4, (nodes,))
    edge_index = torch.randint(0, nodes, (2, edges))
    model = GCN(8, 8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=True)
    for epoch in range(300):
        model.train()
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0:
            print(epoch, loss.item())


if __name__ == "__main__":
    main()
