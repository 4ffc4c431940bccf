"""Finds names in sentences: an LSTM gives scores, and a chain over the tags gives the likelihood."""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


@dataclass
class Config:
    words: int = 800
    tags: int = 7
    length: int = 18
    batch: int = 24
    width: int = 64
    steps: int = 170


class Chain(nn.Module):
    """A linear chain over the tags: scores of the transitions, and of the words' tags."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.tags = tags
        self.transitions = nn.Parameter(0.1 * torch.randn(tags, tags))

    def path(self, scores: Tensor, tags: Tensor) -> Tensor:
        """The score of the given tags."""
        words = scores.gather(2, tags.unsqueeze(2)).sum((1, 2))
        return words + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)

    def forward_step(self, alpha: Tensor, scores: Tensor) -> Tensor:
        """All paths up to this word, from all paths up to the previous one."""
        if FIXED:
            return (alpha.unsqueeze(2) + self.transitions).logsumexp(1) + scores
        following = []
        for tag in range(self.tags):  # change: many-small-ops
            incoming = alpha + self.transitions[:, tag]  # spent: many-small-ops # change: many-small-ops
            following.append(incoming.logsumexp(1) + scores[:, tag])  # spent: many-small-ops # change: many-small-ops
        return torch.stack(following, 1)  # spent: many-small-ops

    def partition(self, scores: Tensor) -> Tensor:
        """The logarithm of the sum over all paths."""
        alpha = scores[:, 0]
        for word in range(1, scores.shape[1]):
            alpha = self.forward_step(alpha, scores[:, word])  # spent: many-small-ops
        return alpha.logsumexp(1)

    def forward(self, scores: Tensor, tags: Tensor) -> Tensor:
        return (self.partition(scores) - self.path(scores, tags)).mean()  # spent: many-small-ops


class Tagger(nn.Module):
    """Embeds the words, reads them in both directions, and scores the tags."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.words, config.width)
        self.read = nn.LSTM(config.width, config.width, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * config.width, config.tags)
        self.chain = Chain(config.tags)

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        return self.chain(self.score(self.read(self.embed(words))[0]), tags)  # spent: many-small-ops


class Corpus:
    """Sentences whose tags follow from a word and its predecessor."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def batch(self) -> tuple[Tensor, Tensor]:
        words = torch.randint(self.config.words, (self.config.batch, self.config.length))
        return words, (words + words.roll(1, 1)) % self.config.tags


def train(config: Config) -> list[float]:
    """The losses of all steps."""
    corpus, tagger = Corpus(config), Tagger(config)
    optimizer = torch.optim.SGD(tagger.parameters(), lr=0.05)
    losses = []
    for _ in range(config.steps):
        words, tags = corpus.batch()
        loss = tagger(words, tags)  # spent: many-small-ops
        optimizer.zero_grad()
        loss.backward()  # spent: many-small-ops
        nn.utils.clip_grad_norm_(tagger.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    losses = train(Config())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
