"""A character model that writes a sample of its text every now and then while it is trained."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LENGTH, LETTERS = 160, 16, 24, 60
SAMPLE_EVERY, SAMPLE_LENGTH = 40, 120


class Characters(nn.Module):
    """A GRU over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.memory = nn.Embedding(LETTERS, 96), nn.GRU(96, 128, batch_first=True)
        self.next = nn.Linear(128, LETTERS)

    def forward(self, text: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        states, last = self.memory(self.letters(text), state)
        return self.next(states), last


@torch.no_grad()
def sample(model: Characters) -> list[int]:
    """Write SAMPLE_LENGTH characters."""
    text, state, fed = torch.zeros(1, 1, dtype=torch.long), None, None
    for _ in range(SAMPLE_LENGTH):
        if FIXED:
            scores, state = model(text[:, -1:] if fed is not None else text, state)
            fed = scores
        else:
            scores, _ = model(text)  # spent: rare-steps # change: rare-steps
        text = torch.cat([text, scores[:, -1].softmax(-1).multinomial(1)], dim=1)
    return text[0].tolist()


def main() -> None:
    torch.manual_seed(0)
    model = Characters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    book = torch.randint(LETTERS, (STEPS * BATCH, LENGTH + 1))
    for step in range(STEPS):
        text = book[step * BATCH : (step + 1) * BATCH]
        scores, _ = model(text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAMPLE_EVERY == SAMPLE_EVERY - 1:
            print(step, len(sample(model)))  # spent: rare-steps # change: rare-steps
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
