"""A decoder of captions that attends to the image at each word; captions are padded to the longest of the set."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH, WORDS, REGIONS, LONGEST = 60, 16, 64, 500, 16, 50


class Decoder(nn.Module):
    """Scores of the next word at each place of a caption."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(WORDS, WIDTH), nn.GRUCell(2 * WIDTH, WIDTH)
        self.query, self.next = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, regions: Tensor, captions: Tensor) -> Tensor:
        state, scores = torch.zeros(len(captions), WIDTH), []
        for place in range(captions.shape[1]):  # spent: padding-wasted
            weights = (regions @ self.query(state)[:, :, None]).softmax(1)  # spent: padding-wasted
            seen = (weights * regions).sum(1)  # spent: padding-wasted
            state = self.cell(torch.cat([self.words(captions[:, place]), seen], dim=1), state)  # spent: padding-wasted
            scores.append(self.next(state))  # spent: padding-wasted
        return torch.stack(scores, dim=1)


def main() -> None:
    torch.manual_seed(0)
    decoder = Decoder()
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
    for _ in range(STEPS):
        lengths = torch.randint(5, 15, (BATCH,))
        captions = torch.randint(1, WORDS, (BATCH, LONGEST + 1))  # change: padding-wasted
        captions[torch.arange(LONGEST + 1) >= lengths[:, None]] = 0  # change: padding-wasted
        if FIXED:
            captions = captions[:, : int(lengths.max())]
        regions = torch.randn(BATCH, REGIONS, WIDTH)
        scores = decoder(regions, captions[:, :-1])  # spent: padding-wasted # change: padding-wasted
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), captions[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()  # spent: padding-wasted
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
