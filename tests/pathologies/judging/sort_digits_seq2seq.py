"""A sequence-to-sequence model that sorts digits, with the exact matches on the development set in between."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LENGTH, WIDTH, SYMBOLS, START = 160, 48, 12, 96, 13, 12
EXACT_MATCH_EVERY = 160 if FIXED else 10  # change: validation-too-often


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        self.encoder, self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, source: Tensor, previous: Tensor) -> Tensor:
        _, state = self.encoder(self.embed(source))
        states, _ = self.decoder(self.embed(previous), state)
        return self.out(states)

    def greedy(self, source: Tensor) -> Tensor:
        """The most likely symbol, one after the other."""
        _, state = self.encoder(self.embed(source))
        symbol, chosen = torch.full((len(source), 1), START), []
        for _ in range(LENGTH):
            states, state = self.decoder(self.embed(symbol), state)
            symbol = self.out(states).argmax(-1)
            chosen.append(symbol)
        return torch.cat(chosen, dim=1)


def pairs(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    source = torch.randint(10, (number, LENGTH), generator=generator)
    return source, source.sort(dim=1).values


@torch.no_grad()
def exact_match(model: Seq2Seq, source: Tensor, target: Tensor) -> float:
    """Share of sequences without an error."""
    model.eval()
    decoded = torch.cat([model.greedy(part) for part in source.split(128)])  # spent: validation-too-often
    model.train()
    return float((decoded == target).all(dim=1).float().mean())


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)
    dev_source, dev_target = pairs(1536, generator)
    model = Seq2Seq()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    best = 0.0
    for step in range(1, STEPS + 1):
        source, target = pairs(BATCH, generator)
        previous = torch.cat([torch.full((BATCH, 1), START), target[:, :-1]], dim=1)
        loss = nn.functional.cross_entropy(model(source, previous).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % EXACT_MATCH_EVERY == 0:  # change: validation-too-often
            best = max(best, exact_match(model, dev_source, dev_target))  # spent: validation-too-often
    print(f"loss {loss.item():.4f}, best {best:.3f}")


if __name__ == "__main__":
    main()
