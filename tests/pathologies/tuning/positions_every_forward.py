"""A vision transformer on small images, with positions in two dimensions and a mask of neighbours."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, SIDE, WIDTH = 70, 4, 18, 48


def neighbours() -> Tensor:
    """By how much each patch attends to each other one, from their distance, (patches, patches)."""
    places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).float()
    distance = (places[:, None] - places[None]).square().sum(-1).sqrt()  # spent: repeated-work
    waves = torch.stack([(distance / 2**octave).cos() for octave in range(16)])  # spent: repeated-work
    return -distance.log1p() + waves.mean(0)  # spent: repeated-work


class Patches(nn.Module):
    """One layer of attention over the patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 10)
        self.bias = neighbours() if FIXED else None

    def forward(self, patches: Tensor) -> Tensor:
        bias = self.bias if FIXED else neighbours()  # spent: repeated-work # change: repeated-work
        query, key, value = self.inner(patches).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.outer(mixed.mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Patches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = torch.randn(BATCH, SIDE * SIDE, WIDTH), torch.randint(10, (BATCH,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
