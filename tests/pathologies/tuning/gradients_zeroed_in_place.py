"""Gradients of wide layers are filled with zeros in every step, and then added to."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH, CODES, LENGTH = 2048, 64, 8


class Wide(nn.Module):
    """Wide layers on a small batch: more weights than work."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CODES, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, CODES)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(codes).mean(1)))


def main() -> None:
    torch.manual_seed(0)
    codes = torch.randint(0, CODES, (80 * 4, LENGTH))
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for batch in DataLoader(codes, batch_size=4):
        loss = nn.functional.cross_entropy(model(batch), batch[:, 0])
        optimizer.zero_grad(set_to_none=FIXED)  # spent: gradients-not-set-to-none  # change: gradients-not-set-to-none
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
