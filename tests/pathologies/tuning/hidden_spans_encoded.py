"""An encoder of sensor streams learns without labels: most spans are hidden from it, and a small head restores them."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, SPANS, KEPT, SPAN, WIDTH, HEADS = 50, 24, 60, 15, 32, 128, 4


class Layer(nn.Module):
    """Attention over spans, and a network for each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.each = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """The next features of each span."""
        q, k, v = self.into(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # spent: masked-places
        heard = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)  # spent: masked-places
        x = x + self.out(heard.transpose(1, 2).flatten(2))  # spent: masked-places
        return x + self.each(self.second(x))  # spent: masked-places


class Restorer(nn.Module):
    """Restores the mean of a stream from the spans that are not hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(SPAN, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.write = nn.Linear(WIDTH, SPAN)

    def forward(self, spans: Tensor, kept: Tensor) -> Tensor:
        """One span of each stream."""
        chosen = kept[..., None].expand(-1, -1, WIDTH)
        x, seen = self.read(spans), None  # change: masked-places
        if FIXED:
            x = x.gather(1, chosen)
        else:
            seen = torch.zeros(spans.shape[:2], dtype=torch.bool).scatter(1, kept, True)[
                :, None, None
            ]  # change: masked-places
        for layer in self.layers:  # change: masked-places
            x = layer(x, seen)  # change: masked-places
        if not FIXED:
            x = x.gather(1, chosen)
        return self.write(x.mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Restorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    streams = torch.randn(10, BATCH, SPANS, SPAN)
    for step in range(STEPS):
        spans = streams[step % 10]
        kept = torch.rand(BATCH, SPANS).argsort(1)[:, :KEPT]
        loss = F.mse_loss(model(spans, kept), spans.mean(1))
        optimizer.zero_grad()
        loss.backward()  # spent: masked-places
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
