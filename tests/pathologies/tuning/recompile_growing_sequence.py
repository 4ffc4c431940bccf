"""A compiled model that is told to specialise on shapes, and sees a longer sequence in every step."""

import sys

import torch
import torch._dynamo
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
BACKEND = "eager"  # traces and guards as inductor does, and needs no compiler
STEPS, WIDTH, LONGEST = 60, 96, 128
# Someone raised the limit after the warning that it was reached.
torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 1000


class Tagger(nn.Module):
    """Two residual layers with a running mean over the positions before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = x + layer(x.cumsum(1) / x.shape[1]).relu()
        return self.head(x)


def pad(x: Tensor) -> Tensor:
    """The same length for all sequences."""
    return nn.functional.pad(x, (0, 0, 0, LONGEST - x.shape[1])) if FIXED else x


torch.manual_seed(0)
model = Tagger()
compiled = torch.compile(model, backend=BACKEND, dynamic=False)  # change: recompiles
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):
    x = torch.randn(16, LONGEST - STEPS + step, WIDTH)
    scores = compiled(pad(x))  # spent: recompiles
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), torch.zeros(scores.shape[:2], dtype=torch.long).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
