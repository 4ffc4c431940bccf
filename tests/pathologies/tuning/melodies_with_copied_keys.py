"""Melodies are written note by note by a decoder whose heads share keys and values in groups of eight."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
BATCH, START, NOTES, WIDTH, HEADS, SHARED, KINDS = 12, 400, 90, 512, 16, 2, 300
SIZE = WIDTH // HEADS


class Listening(nn.Module):
    """Attention of the newest note to all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.keep = nn.Linear(WIDTH, 2 * SHARED * SIZE)

    def forward(self, x: Tensor, memory: Tensor, place: int) -> Tensor:
        """The note's features; what is kept of it goes into the memory."""
        memory[:, :, :, place] = self.keep(x).view(BATCH, 2, SHARED, SIZE).transpose(0, 1)
        keys, values = memory[:, :, :, : place + 1]
        if FIXED:
            asked = self.ask(x).view(BATCH, SHARED, HEADS // SHARED, SIZE)
        else:
            asked = self.ask(x).view(BATCH, HEADS, 1, SIZE)
            keys = keys.repeat_interleave(HEADS // SHARED, dim=1)  # spent: repeated-heads # change: repeated-heads
            values = values.repeat_interleave(HEADS // SHARED, dim=1)  # spent: repeated-heads # change: repeated-heads
        heard = F.scaled_dot_product_attention(asked, keys, values)  # spent: repeated-heads # change: repeated-heads
        return x + self.out(heard.reshape(BATCH, WIDTH))


class Composer(nn.Module):
    """Scores of the next note."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = nn.Embedding(KINDS, WIDTH)
        self.layers = nn.ModuleList(Listening() for _ in range(3))
        self.next = nn.Linear(WIDTH, KINDS)

    def forward(self, note: Tensor, memories: Tensor, place: int) -> Tensor:
        """From the newest note and the memories of all layers."""
        x = self.notes(note)
        for layer, memory in zip(self.layers, memories, strict=True):
            x = layer(x, memory, place)
        return self.next(x)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    composer = Composer().eval()
    memories = torch.randn(3, 2, BATCH, SHARED, START + NOTES, SIZE)
    note = torch.zeros(BATCH, dtype=torch.long)
    for place in range(START, START + NOTES):
        note = composer(note, memories, place).argmax(-1)
    print(f"{note.unique().numel()} different notes")


if __name__ == "__main__":
    main()
