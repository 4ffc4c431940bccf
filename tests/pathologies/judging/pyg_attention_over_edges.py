"""Graph attention with PyTorch Geometric on batches of small graphs, gathered and scattered over their edges."""

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, global_mean_pool


class Gat(nn.Module):
    """The class of a graph."""

    def __init__(self, features: int = 32, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.first = GATv2Conv(features, width, heads)
        self.second = GATv2Conv(width * heads, width, heads)
        self.head = nn.Linear(width * heads, 5)

    def forward(self, data: Data) -> Tensor:
        x = nn.functional.elu(self.first(data.x, data.edge_index))
        x = nn.functional.elu(self.second(x, data.edge_index))
        return self.head(global_mean_pool(x, data.batch))


def main() -> None:
    torch.manual_seed(0)
    graphs = [
        Data(x=torch.randn(n, 32), edge_index=torch.randint(0, n, (2, 10 * n)), y=torch.randint(0, 5, (1,)))
        for n in torch.randint(60, 120, (480,)).tolist()
    ]
    loader = DataLoader(graphs, batch_size=24, shuffle=True)
    model = Gat()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for _ in range(3):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
