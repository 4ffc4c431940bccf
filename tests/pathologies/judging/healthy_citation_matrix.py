"""Topics of papers by graph convolutions: a sparse matrix of citations times dense features."""

import torch
from torch import Tensor, nn

STEPS, PAPERS, CITATIONS, WORDS, WIDTH, TOPICS = 90, 4000, 40_000, 256, 128, 8


def normalized(papers: int, citations: int) -> Tensor:
    """The matrix of citations whose rows sum to one."""
    pairs = torch.randint(papers, (2, citations))
    pairs = torch.cat([pairs, pairs.flip(0), torch.arange(papers).expand(2, -1)], dim=1).unique(dim=1)
    degree = torch.bincount(pairs[0], minlength=papers)
    return torch.sparse_coo_tensor(pairs, 1.0 / degree[pairs[0]], (papers, papers)).to_sparse_csr()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, TOPICS)

    def forward(self, words: Tensor, cites: Tensor) -> Tensor:
        words = nn.functional.dropout(words, 0.4, self.training)
        x = torch.sparse.mm(cites, self.first(words)).relu()
        x = torch.sparse.mm(cites, self.second(x)).relu()
        return torch.sparse.mm(cites, self.third(x))


def main() -> None:
    torch.manual_seed(0)
    cites, words = normalized(PAPERS, CITATIONS), torch.randn(PAPERS, WORDS)
    topics = words[:, :TOPICS].argmax(1)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, fused=True)
    for step in range(STEPS):
        scores = model(words, cites)
        loss = nn.functional.cross_entropy(scores[:2000], topics[:2000])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            right = (scores[2000:].argmax(1) == topics[2000:]).float().mean().item()
            print(f"{step}: loss {loss.item():.4f}, right {right:.3f}")


if __name__ == "__main__":
    main()
