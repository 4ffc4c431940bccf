"""Headlines by beam search: a recurrent encoder, and a decoder that looks at all of its states."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
ARTICLES, ARTICLE, HEADLINE, BEAMS, WIDTH, WORDS = 400, 60, 14, 5, 128, 2000


class Summarizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.reader = nn.GRU(WIDTH, WIDTH // 2, num_layers=2, batch_first=True, bidirectional=True)
        self.writer = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(2 * WIDTH, WORDS)

    def encode(self, article: Tensor) -> Tensor:
        """A state per word, (batch, words, WIDTH)."""
        return self.reader(self.embed(article))[0]

    def decode(self, memory: Tensor, words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities of the words that follow each beam, (batch, beams, WORDS), and the next state."""
        states, state = self.writer(self.embed(words.flatten())[:, None], state)
        states = states.view(*words.shape, WIDTH)
        looked = nn.functional.scaled_dot_product_attention(states, memory, memory)
        return self.out(torch.cat([states, looked], dim=2)).log_softmax(2), state


def headlines(model: Summarizer, articles: Tensor) -> tuple[Tensor, Tensor]:
    """The best headline of each article and its score."""
    number = len(articles)
    words, scores = torch.zeros(number, 1, dtype=torch.long), torch.zeros(number, 1)
    texts, state = words[..., None], torch.zeros(1, number, WIDTH)
    if FIXED:
        memory = model.encode(articles)
    for _ in range(HEADLINE):
        if not FIXED:
            memory = model.encode(articles)  # spent: repeated-work # change: repeated-work
        follow, state = model.decode(memory, words, state)
        beams = words.shape[1]
        scores, best = (scores[..., None] + follow).flatten(1).topk(BEAMS)
        parents = (best // WORDS + beams * torch.arange(number)[:, None]).flatten()
        words, state = best % WORDS, state[:, parents]
        texts = torch.cat([texts.flatten(0, 1)[parents].view(number, BEAMS, -1), words[..., None]], dim=2)
    return texts[:, 0, 1:], scores[:, 0]


def main() -> None:
    torch.manual_seed(0)
    model = Summarizer().eval()
    articles = torch.randint(1, WORDS, (ARTICLES, ARTICLE))
    with torch.inference_mode():
        scores = torch.cat([headlines(model, part)[1] for part in articles.split(8)])
    print(f"mean score {scores.mean().item():.4f}")


if __name__ == "__main__":
    main()
