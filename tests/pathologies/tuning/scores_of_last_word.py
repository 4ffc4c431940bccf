"""A language model that learns to answer with one word after a question: only the scores of the last place count."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LENGTH, WIDTH, WORDS, ANSWERS = 90, 16, 48, 64, 3000, 4


class Answerer(nn.Module):
    """Scores of all words, after each word of a question."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.reader = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, question: Tensor) -> Tensor:
        read, _ = self.reader(self.words(question))
        if FIXED:
            read = read[:, -1:]
        return self.scores(read)  # spent: unused-rows # change: unused-rows


def main() -> None:
    torch.manual_seed(0)
    model = Answerer()
    answers = torch.randint(WORDS, (ANSWERS,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        question, answer = torch.randint(WORDS, (BATCH, LENGTH)), torch.randint(ANSWERS, (BATCH,))
        scores = model(question)[:, -1]  # spent: unused-rows # change: unused-rows
        loss = F.cross_entropy(scores[:, answers], answer)
        optimizer.zero_grad()
        loss.backward()  # spent: unused-rows
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
