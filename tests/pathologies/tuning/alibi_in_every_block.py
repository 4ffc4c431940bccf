"""A language model with linear attention biases; each block builds the bias of all heads anew in each forward pass."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

FIXED = "--fixed" in sys.argv


class Config:
    vocab = 256
    width = 96
    heads = 8
    layers = 3
    block = 128
    batch = 4
    steps = 150


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        if FIXED:
            self.register_buffer("kept", self.bias(1, config.block), persistent=False)

    def bias(self, rows: int, length: int) -> torch.Tensor:
        """What is added to the scores: the distance times the head's slope, and no look ahead."""
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1) / self.heads)
        places = torch.arange(length)
        distance = (places[None, :] - places[:, None]).repeat(rows, self.heads, 1, 1)  # spent: repeated-work
        bias = slopes[:, None, None] * distance  # spent: repeated-work
        return bias.masked_fill(distance > 0, float("-inf"))  # spent: repeated-work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.kept[..., :length, :length] if FIXED else self.bias(n, length)  # change: repeated-work
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 2 * config.width), nn.GELU(), nn.Linear(2 * config.width, config.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.width)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


config = Config()
torch.manual_seed(1337)
data = torch.randint(config.vocab, (200_000,))


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    ix = torch.randint(len(data) - config.block, (config.batch,)).tolist()
    x = torch.stack([data[i : i + config.block] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + config.block] for i in ix])
    return x, y


model = Model(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
for it in range(config.steps):
    loss = model(*get_batch())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if it % 50 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")
