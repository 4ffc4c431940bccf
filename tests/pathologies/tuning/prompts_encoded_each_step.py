"""Images are matched with prompts of their classes, which a frozen text encoder encodes anew in each step."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, CLASSES, LENGTH, WIDTH = 60, 64, 40, 24, 96


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, codes: Tensor) -> Tensor:
        encoded: Tensor = self.layers(self.embed(codes))  # spent: repeated-work
        return encoded.mean(1)


def main() -> None:
    torch.manual_seed(0)
    text = Text().eval().requires_grad_(False)
    prompts = torch.randint(500, (CLASSES, LENGTH))
    image = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2048, WIDTH),
    )
    optimizer = torch.optim.AdamW(image.parameters(), lr=1e-3, fused=True)
    ready = text(prompts)
    for _ in range(STEPS):
        x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(CLASSES, (BATCH,))
        names = ready if FIXED else text(prompts)  # spent: repeated-work  # change: repeated-work
        logits = nn.functional.normalize(image(x), dim=-1) @ nn.functional.normalize(names, dim=-1).T
        loss = nn.functional.cross_entropy(10 * logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
