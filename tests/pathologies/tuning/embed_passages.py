"""Retrieval: the passages of a collection are embedded into an index, then questions are answered from it."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
PASSAGES, QUESTIONS, WORDS, LENGTH, WIDTH = 3000, 40, 2000, 32, 64


class Encoder(nn.Module):
    """A text as a unit vector."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, text: Tensor) -> Tensor:
        return nn.functional.normalize(self.layers(self.words(text)).mean(1), dim=1)


def build_index(encoder: Encoder, passages: Tensor) -> Tensor:
    """The vectors of all passages."""
    if FIXED:
        return torch.cat([encoder(batch) for batch in passages.split(64)])
    vectors = [
        encoder(passage[None])  # spent: loop-over-samples # change: loop-over-samples
        for passage in passages
    ]
    return torch.cat(vectors)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    encoder = Encoder().eval()
    index = build_index(encoder, torch.randint(WORDS, (PASSAGES, LENGTH)))
    for question in torch.randint(WORDS, (QUESTIONS, 12)):
        best = (index @ encoder(question[None])[0]).topk(3)
    print(best.indices.tolist())


if __name__ == "__main__":
    main()
