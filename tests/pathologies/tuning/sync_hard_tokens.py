"""A language model that learns from the hard tokens only, and picks them with a mask whose size the host must know."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
VOCABULARY, LENGTH, WIDTH = 300, 49, 96


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


def hard_loss(scores: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of the tokens that are worse than the mean."""
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), tokens, reduction="none")
    hard = losses.detach() > losses.detach().mean()
    if FIXED:
        return (losses * hard).sum() / hard.sum()
    return losses[hard].mean()  # spent: sync-in-step  # change: sync-in-step


torch.manual_seed(0)
text = torch.randint(0, VOCABULARY, (80 * 16, LENGTH))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for tokens in DataLoader(text, batch_size=16):
    loss = hard_loss(model(tokens[:, :-1]), tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
