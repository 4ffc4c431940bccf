"""Headlines by beam search: a recurrent encoder, and a decoder that looks at all of its states."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
ARTICLES, ARTICLE, HEADLINE, BEAMS, WIDTH, WORDS = 60, 120, 14, 5, 128, 2000


class Summarizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.reader = nn.GRU(WIDTH, WIDTH // 2, num_layers=2, batch_first=True, bidirectional=True)
        self.writer = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(2 * WIDTH, WORDS)

    def encode(self, article: Tensor) -> Tensor:
        """A state per word, (1, words, WIDTH)."""
        return self.reader(self.embed(article))[0]

    def decode(self, memory: Tensor, words: Tensor) -> Tensor:
        """Log probabilities of the word that follows each beam."""
        states = self.writer(self.embed(words))[0][:, -1:]
        looked = nn.functional.scaled_dot_product_attention(states, memory, memory)
        return self.out(torch.cat([states, looked], dim=2)[:, 0]).log_softmax(1)


def headline(model: Summarizer, article: Tensor) -> tuple[Tensor, float]:
    """The best headline and its score."""
    beams, scores = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1)
    if FIXED:
        memory = model.encode(article)
    for _ in range(HEADLINE):
        if not FIXED:
            memory = model.encode(article)  # spent: repeated-work # change: repeated-work
        follow = model.decode(memory.expand(len(beams), -1, -1), beams)
        scores, best = (scores[:, None] + follow).flatten().topk(BEAMS)
        beams = torch.cat([beams[best // WORDS], (best % WORDS)[:, None]], dim=1)
    return beams[0, 1:], float(scores[0])


def main() -> None:
    torch.manual_seed(0)
    model = Summarizer().eval()
    articles = torch.randint(1, WORDS, (ARTICLES, 1, ARTICLE))
    total = 0.0
    with torch.inference_mode():
        for article in articles:
            _, score = headline(model, article)
            total += score
    print(f"mean score {total / ARTICLES:.4f}")


if __name__ == "__main__":
    main()
