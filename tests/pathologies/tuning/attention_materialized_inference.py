"""An encoder for long documents that writes out its attention matrix, in inference."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH, HEADS, LENGTH = 96, 6, 512


class Reader(nn.Module):
    """One attention layer and a head over (batch, LENGTH, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 8)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if FIXED:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        weights = torch.softmax(
            torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5, -1
        )  # spent: attention-unfused  # change: attention-unfused
        return torch.matmul(weights, v)  # spent: attention-unfused  # change: attention-unfused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        return self.head(self.attend(q, k, v).transpose(1, 2).flatten(2).mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Reader().eval()
    documents = torch.randn(70, 2, LENGTH, WIDTH)
    total = torch.zeros(8)
    with torch.inference_mode():
        for batch in DataLoader(documents, batch_size=None):
            total += model(batch).sum(0)
    print(f"{total.norm().item():.4f}")


if __name__ == "__main__":
    main()
