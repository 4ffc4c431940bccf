"""A small diffusion model of drawn discs: a generator of batches, clipping, a moving average, few checkpoints."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

STEPS, BATCH, SIZE, TIMES, SAVE_EVERY = 120, 16, 24, 200, 60


def discs() -> Iterator[Tensor]:
    """Batches of pictures, each with one disc."""
    line = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(line, line, indexing="ij")
    while True:
        centre, radius = torch.rand(BATCH, 2, 1, 1) - 0.5, 0.2 + 0.3 * torch.rand(BATCH, 1, 1)
        away = (x - centre[:, 0]).square() + (y - centre[:, 1]).square()
        yield (away < radius.square()).float().mul(2).sub(1).unsqueeze(1)


class Denoiser(nn.Module):
    """The noise in a picture at a time."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.when = nn.Sequential(nn.Embedding(TIMES, width), nn.Linear(width, width), nn.SiLU())
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        fine = nn.functional.silu(self.first(noisy) + self.when(time)[:, :, None, None])
        coarse = nn.functional.silu(self.down(fine))
        coarse = coarse + nn.functional.silu(self.middle(coarse))
        return self.last(fine + nn.functional.silu(self.up(coarse)))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    kept = (1 - torch.linspace(1e-4, 0.04, TIMES)).cumprod(0)
    batches = discs()
    for step in range(1, STEPS + 1):
        pictures = next(batches)
        time = torch.randint(TIMES, (BATCH,))
        noise = torch.randn_like(pictures)
        share = kept[time][:, None, None, None]
        loss = nn.functional.mse_loss(model(share.sqrt() * pictures + (1 - share).sqrt() * noise, time), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        torch._foreach_lerp_(average, [weight.detach() for weight in weights], 0.01)
        if step % SAVE_EVERY == 0:
            torch.save({"model": model.state_dict(), "average": average, "step": step}, folder / f"{step}.pt")
            print(f"{step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
