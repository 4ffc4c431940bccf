"""The topics of letters to a newspaper: features of each word are projected to wide ones, and then averaged."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LENGTH, WORDS, WIDTH, WIDE, TOPICS = 90, 24, 160, 5000, 96, 768, 12


class Topics(nn.Module):
    """Scores of topics from the average of what is projected."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.around = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.project = nn.Linear(WIDTH, WIDE)
        self.topics = nn.Sequential(nn.GELU(), nn.Linear(WIDE, TOPICS))

    def forward(self, letters: Tensor) -> Tensor:
        """Scores of each letter's topics."""
        words = self.words(letters)
        words = words + F.relu(self.around(words.transpose(1, 2))).transpose(1, 2)
        if FIXED:
            return self.topics(self.project(words.mean(1)))
        features = self.project(words)  # spent: resize-order # change: resize-order
        return self.topics(features.mean(1))  # change: resize-order


def main() -> None:
    torch.manual_seed(0)
    model = Topics()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    letters, topics = torch.randint(WORDS, (20, BATCH, LENGTH)), torch.randint(TOPICS, (20, BATCH))
    for step in range(STEPS):
        loss = F.cross_entropy(model(letters[step % 20]), topics[step % 20])
        optimizer.zero_grad()
        loss.backward()  # spent: resize-order
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
