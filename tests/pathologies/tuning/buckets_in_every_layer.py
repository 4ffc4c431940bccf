"""A small T5-like encoder on protein sequences; every layer computes its relative position buckets."""

import math
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
L, D, HEADS = 128, 64, 4


def buckets(length: int, count: int = 32, longest: int = 128) -> Tensor:
    rel = torch.arange(length)[None] - torch.arange(length)[:, None]  # spent: repeated-work
    side = (rel > 0).long() * (count // 2)  # spent: repeated-work
    rel = rel.abs()
    near = count // 4
    far = (
        near + (torch.log(rel.float().clamp(min=1) / near) / math.log(longest / near) * (count // 2 - near)).long()
    )  # spent: repeated-work
    return side + torch.where(rel < near, rel, far.clamp(max=count // 2 - 1))  # spent: repeated-work


KEPT = buckets(L)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(32, HEADS)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm = nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        which = KEPT if FIXED else buckets(N)  # spent: repeated-work # change: repeated-work
        bias = self.bias(which).permute(2, 0, 1)
        q, k, v = self.qkv(self.norm(x)).view(B, N, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.out(y.transpose(1, 2).reshape(B, N, D))


class Encoder(nn.Module):
    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.emb = nn.Embedding(26, D)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(D, 26)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.emb(ids)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def main() -> None:
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    for _ in range(250):
        ids = torch.randint(26, (2, L))
        loss = nn.functional.cross_entropy(model(ids).transpose(1, 2), ids)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())


if __name__ == "__main__":
    main()
