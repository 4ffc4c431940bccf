"""Sentiment of reviews of very different lengths, scored in batches by a script without a DataLoader."""

import random
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
REVIEWS, BATCH, WORDS, LONGEST, WIDTH = 4_800, 32, 5_000, 200, 96


class Sentiment(nn.Module):
    """How positive a review is."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.layers(self.words(text), src_key_padding_mask=text == 0)
        return self.score(hidden[:, 0]).squeeze(1)


def padded(reviews: list[list[int]]) -> Tensor:
    """Reviews as rows, with zeros after the shorter ones."""
    longest = max(map(len, reviews))
    return torch.tensor([review + [0] * (longest - len(review)) for review in reviews])


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    lengths = [min(LONGEST, max(4, int(draw.lognormvariate(3.2, 0.8)))) for _ in range(REVIEWS)]
    reviews = [[draw.randrange(1, WORDS) for _ in range(length)] for length in lengths]
    model = Sentiment().eval()
    order = list(range(REVIEWS))  # change: imbalanced-data
    if FIXED:
        order.sort(key=lengths.__getitem__)
    scores = torch.empty(REVIEWS)
    for first in range(0, REVIEWS, BATCH):
        chosen = order[first : first + BATCH]  # change: imbalanced-data
        scores[chosen] = model(padded([reviews[i] for i in chosen]))  # spent: imbalanced-data # change: imbalanced-data
    print(f"mean {scores.mean():.3f}")


if __name__ == "__main__":
    main()
