"""Retrieval in hops: each question takes up words of the passage that was found for the one before it."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
PASSAGES, QUESTIONS, WORDS, LENGTH, WIDTH = 5000, 3000, 2000, 32, 96


class Encoder(nn.Module):
    """The mean of a text's contextual word vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.layers(self.words(text)).mean(1)


class Store:
    """Vectors by the name of their passage; passages can be added at any time."""

    def __init__(self) -> None:
        self.vectors: dict[str, Tensor] = {}
        self._matrix: Tensor | None = None

    def add(self, name: str, vector: Tensor) -> None:
        """Add a passage."""
        self.vectors[name] = vector
        self._matrix = None

    def matrix(self) -> Tensor:
        """All vectors, of length one."""
        if self._matrix is None or not FIXED:
            rows = torch.stack(list(self.vectors.values()))  # spent: repeated-work # change: repeated-work
            self._matrix = nn.functional.normalize(rows, dim=1)  # spent: repeated-work # change: repeated-work
        return self._matrix

    def nearest(self, query: Tensor, count: int) -> list[str]:
        """Names of the passages with the most similar vectors."""
        scores = self.matrix() @ nn.functional.normalize(query, dim=0)  # spent: repeated-work
        names = list(self.vectors)
        return [names[i] for i in scores.topk(count).indices.tolist()]


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    encoder = Encoder().eval()
    store = Store()
    passages = torch.randint(WORDS, (PASSAGES, LENGTH))
    for first in range(0, PASSAGES, 64):
        for number, vector in enumerate(encoder(passages[first : first + 64]), start=first):
            store.add(f"passage-{number}", vector)
    hint = passages[0, :8]
    for words in torch.randint(WORDS, (QUESTIONS, 8)):
        question = torch.cat([words, hint])
        found = store.nearest(encoder(question[None])[0], 10)
        hint = passages[int(found[0].removeprefix("passage-")), :8]
    print(found[:3])


if __name__ == "__main__":
    main()
