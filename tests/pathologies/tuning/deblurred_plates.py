"""License plates are deblurred: for each, L-BFGS with a line search finds the picture whose blurred copy was seen."""

import sys

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
PICTURES, SIZE, WIDTH, ITERATIONS = 40, 96, 9, 10


def kernel() -> Tensor:
    """Of a camera that moved a little: (1, 1, WIDTH, WIDTH)."""
    at = torch.arange(WIDTH) - WIDTH // 2
    along = torch.exp(-((at[:, None] - at[None, :]) ** 2) / 4.0 - at[:, None] ** 2 / 30.0)
    return (along / along.sum())[None, None]


def deblur(seen: Tensor, blur: Tensor) -> Tensor:
    """The picture, (1, 1, SIZE, SIZE), with few edges, whose blurred copy is ``seen``."""
    picture = seen.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(  # change: repeated-closure
        [picture],
        max_iter=ITERATIONS if FIXED else 1,
        max_eval=3 * ITERATIONS,
        line_search_fn="strong_wolfe",
        tolerance_change=0.0,
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        apart = F.conv2d(picture, blur, padding=WIDTH // 2) - seen
        down, right = picture.diff(dim=2), picture.diff(dim=3)
        edges = (down.square() + 1e-4).sqrt().mean() + (right.square() + 1e-4).sqrt().mean()
        loss = apart.square().mean() + 1e-3 * edges
        loss.backward()
        return loss

    for _ in range(1 if FIXED else ITERATIONS):
        optimizer.step(closure)  # spent: repeated-closure
    return picture.detach()


def main() -> None:
    torch.manual_seed(0)
    blur = kernel()
    sharp = F.interpolate(torch.rand(PICTURES, 1, SIZE // 16, SIZE // 16).round(), size=SIZE)
    seen = F.conv2d(sharp, blur, padding=WIDTH // 2) + 0.01 * torch.randn_like(sharp)
    error = 0.0
    for number, picture in enumerate(DataLoader(seen, batch_size=1)):
        error += float((deblur(picture, blur) - sharp[number]).square().mean())
    print(f"error {error / PICTURES:.6f}")


if __name__ == "__main__":
    main()
