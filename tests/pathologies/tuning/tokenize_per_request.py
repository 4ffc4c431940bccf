"""A text service that tokenizes every request with a slow tokenizer, although requests are made of the same words."""

import random
import sys

import torch
from torch import Tensor, nn

import perfkit

FIXED = "--fixed" in sys.argv
REQUESTS, TEXTS, WORDS, LENGTH = 90, 8, 64, 160
PIECES = {piece: code for code, piece in enumerate(["", *"abcdefghijklmnopqrstuvwxyz", "ing", "ion", "pre", "con"])}
KNOWN: dict[str, list[int]] = {}


def pieces(word: str) -> list[int]:
    """Codes of the longest known pieces, from the left."""
    codes = []
    while word:
        end = next(end for end in range(len(word), 0, -1) if word[:end] in PIECES)  # spent: cpu-preprocessing
        codes.append(PIECES[word[:end]])
        word = word[end:]
    return codes


def tokenize(text: str) -> list[int]:
    """Codes of a text, cut or padded to LENGTH."""
    codes: list[int] = []
    for word in text.split():
        if FIXED and word not in KNOWN:
            KNOWN[word] = pieces(word)
        codes += KNOWN[word] if FIXED else pieces(word)  # change: cpu-preprocessing
    return (codes + [0] * LENGTH)[:LENGTH]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(PIECES), 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, codes: Tensor) -> Tensor:
        return self.layers(self.embed(codes)).mean(1)


torch.manual_seed(0)
draw = random.Random(0)
words = ["".join(draw.choices("abcdefghijklmnopqrst", k=12)) for _ in range(500)]
requests = [[" ".join(draw.choices(words, k=WORDS)) for _ in range(TEXTS)] for _ in range(REQUESTS)]
model = Encoder().eval()
answers = []
with torch.inference_mode():
    for texts in perfkit.steps(requests):
        codes = [tokenize(text) for text in texts]  # spent: cpu-preprocessing  # change: cpu-preprocessing
        answers.append(model(torch.tensor(codes)))
print(f"{torch.cat(answers).mean().item():.4f}")
