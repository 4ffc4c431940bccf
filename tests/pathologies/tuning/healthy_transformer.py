"""A language model with fused attention, a fused optimizer and a loss read every 25 steps."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

WIDTH, HEADS, LENGTH, VOCABULARY, EVERY = 128, 4, 64, 96, 25


class Block(nn.Module):
    """Attention, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.layers(self.between(x))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Block(), Block(), nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    total = torch.zeros(())
    for step, tokens in enumerate(DataLoader(torch.randint(0, VOCABULARY, (75 * 16, LENGTH + 1)), batch_size=16), 1):
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % EVERY == 0:
            print(f"{step}: {total.item() / step:.4f}")


if __name__ == "__main__":
    main()
