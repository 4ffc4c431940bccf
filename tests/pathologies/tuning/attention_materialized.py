"""A causal transformer that writes out its whole attention matrix in every layer."""

import math
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 384, 64


class Attention(nn.Module):
    """Causal self-attention over (batch, length, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.project_in, self.project_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("later", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.project_in(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if FIXED:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (
                q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
            )  # spent: attention-unfused  # change: attention-unfused
            scores = scores.masked_fill(
                self.later, float("-inf")
            )  # spent: attention-unfused  # change: attention-unfused
            mixed = scores.softmax(-1) @ v  # spent: attention-unfused  # change: attention-unfused
        return x + self.project_out(mixed.transpose(1, 2).flatten(2))


torch.manual_seed(0)
layers = [layer for _ in range(2) for layer in (nn.LayerNorm(WIDTH), Attention())]
model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for tokens in DataLoader(torch.randint(0, VOCABULARY, (70 * 4, LENGTH + 0)), batch_size=4):
    scores = model(tokens)
    loss = nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
