"""A character model completes lines of a play, several at a time, and reads all that it has for each character."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
LINES, BATCH, BEGINNING, NEW, WIDTH, LETTERS = 10, 4, 32, 96, 192, 100


class Block(nn.Module):
    """A layer of a causal transformer, which keeps keys and values where it is given a list for them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, kept: list[Tensor] | None) -> Tensor:
        lines, length, _ = x.shape
        query, key, value = self.inner(self.before(x)).view(lines, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        if kept is not None:
            if kept:
                key, value = torch.cat([kept[0], key], 2), torch.cat([kept[1], value], 2)
            kept[:] = [key, value]
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        x = x + self.outer(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Play(nn.Module):
    """A causal transformer over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(BEGINNING + NEW, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.next = nn.Linear(WIDTH, LETTERS)

    def forward(self, text: Tensor, kept: list[list[Tensor]] | None = None, first: int = 0) -> Tensor:
        x = self.letters(text) + self.places.weight[first : first + text.shape[1]]
        for number, block in enumerate(self.blocks):
            x = block(x, kept[number] if kept is not None else None)
        return self.next(x)

    @torch.inference_mode()
    def complete(self, text: Tensor) -> Tensor:
        """NEW characters after each line."""
        kept: list[list[Tensor]] = [[] for _ in self.blocks]
        read = 0
        for _ in range(NEW):
            if FIXED:
                scores = self(text[:, read:], kept, read)
                read = text.shape[1]
            else:
                scores = self(text)  # spent: generation-without-cache # change: generation-without-cache
            text = torch.cat([text, scores[:, -1].softmax(-1).multinomial(1)], dim=1)
        return text


def main() -> None:
    torch.manual_seed(0)
    model = Play().eval()
    for line in range(LINES):
        text = model.complete(torch.randint(LETTERS, (BATCH, BEGINNING)))
        print(line, text.sum().item())


if __name__ == "__main__":
    main()
