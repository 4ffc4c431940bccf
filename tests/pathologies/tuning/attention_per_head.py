"""A small transformer that computes its attention head by head."""

import math
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH, HEADS, LENGTH, VOCABULARY = 128, 32, 24, 64


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project_in, self.project_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.project_in(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if FIXED:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            heads = []
            for head in range(HEADS):  # spent: many-small-ops  # change: many-small-ops
                scores = q[:, head] @ k[:, head].transpose(1, 2) / math.sqrt(WIDTH // HEADS)  # spent: many-small-ops
                heads.append(scores.softmax(-1) @ v[:, head])  # spent: many-small-ops
            mixed = torch.stack(heads, dim=1)
        return x + self.project_out(mixed.transpose(1, 2).flatten(2))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Attention(), Attention(), nn.Linear(WIDTH, VOCABULARY))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
text = torch.randint(0, VOCABULARY, (80 * 16, LENGTH + 1))
for tokens in DataLoader(text, batch_size=16):
    scores = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
