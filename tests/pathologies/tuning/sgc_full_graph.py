"""Papers are classified from their words and the words of the papers they cite: a simplified graph convolution.

The features of three hops have no weights, and are still gathered anew in each epoch.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SGConv
from torch_geometric.utils import to_undirected

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--hops", type=int, default=3)
args = parser.parse_args()


def citations(papers: int = 3000, links: int = 7000, words: int = 128, topics: int = 7) -> Data:
    """A graph in which papers mostly cite papers of their topic."""
    topic = torch.randint(topics, (papers,))
    words_of = torch.randn(topics, words)
    x = words_of[topic] + 3 * torch.randn(papers, words)
    by_topic = topic.argsort()
    near = torch.randint(papers, (links,))
    cited = (near + torch.randint(-200, 200, (links,))) % papers
    edge_index = to_undirected(torch.stack([by_topic[near], by_topic[cited]]))
    split = torch.rand(papers)
    return Data(x=x, edge_index=edge_index, y=topic, train=split < 0.6, val=split >= 0.8)


class Net(torch.nn.Module):
    """Three hops, then two layers."""

    def __init__(self, words: int, topics: int) -> None:
        super().__init__()
        self.conv = SGConv(words, 128, K=args.hops, cached=args.fixed)  # change: repeated-work
        self.out = torch.nn.Linear(128, topics)

    def forward(self, data: Data) -> Tensor:
        x = F.relu(self.conv(data.x, data.edge_index))  # spent: repeated-work # change: repeated-work
        return self.out(F.dropout(x, 0.5, self.training))


torch.manual_seed(12)
data = citations()
model = Net(data.num_features, 7)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=True)
best = 0.0
for epoch in range(1, args.epochs + 1):
    model.train()
    optimizer.zero_grad()
    out = model(data)
    loss = F.cross_entropy(out[data.train], data.y[data.train])
    loss.backward()
    optimizer.step()
    if epoch % 50 == 0:
        model.eval()
        with torch.no_grad():
            guess = model(data)[data.val].argmax(1)
        best = max(best, (guess == data.y[data.val]).float().mean().item())
        print(f"epoch {epoch}: loss {loss.item():.4f}, best {best:.3f}")
