"""Topics of papers from the graph of their citations; intervals of the accuracy are drawn at the end."""

import random
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
PAPERS, WORDS, WIDTH, TOPICS, STEPS = 400, 500, 160, 7, 60


def graph() -> list[list[int]]:
    """The papers that each paper cites, and itself."""
    chance = random.Random(12)
    return [[paper, *chance.sample([other for other in range(PAPERS) if other != paper], 6)] for paper in range(PAPERS)]


class Convolution(nn.Module):
    """A paper becomes a function of the mean of its neighbours."""

    def __init__(self, inputs: int, outputs: int, cited: list[list[int]]) -> None:
        super().__init__()
        self.linear, self.cited = nn.Linear(inputs, outputs), cited
        self.average = torch.zeros(PAPERS, PAPERS)
        for paper, others in enumerate(cited):
            self.average[paper, others] = 1 / len(others)

    def forward(self, papers: Tensor) -> Tensor:
        papers = self.linear(papers)
        if FIXED:
            return self.average @ papers
        means = torch.zeros_like(papers)
        for paper, others in enumerate(self.cited):  # spent: many-small-ops # change: many-small-ops
            means[paper] = papers[others].mean(dim=0)  # spent: many-small-ops # change: many-small-ops
        return means


def interval(right: list[bool], draws: int) -> tuple[float, float]:
    """90 % of the accuracies of papers drawn with replacement."""
    chance = random.Random(13)
    shares = sorted(sum(chance.choices(right, k=len(right))) / len(right) for _ in range(draws))
    return shares[draws // 20], shares[-draws // 20]


def main() -> None:
    torch.manual_seed(0)
    cited = graph()
    words, topics = torch.randn(PAPERS, WORDS), torch.arange(PAPERS) % TOPICS
    first, second = Convolution(WORDS, WIDTH, cited), Convolution(WIDTH, TOPICS, cited)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.2)
    for _ in range(STEPS):
        scores = second(first(words).relu())  # spent: many-small-ops
        loss = nn.functional.cross_entropy(scores, topics)
        optimizer.zero_grad()
        loss.backward()  # spent: many-small-ops
        optimizer.step()
    right = (scores.argmax(1) == topics).tolist()
    low, high = interval(right, 12_000)
    print(f"loss {loss.item():.4f}, accuracy {sum(right) / PAPERS:.3f}, from {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
