"""Where postmarks come from: a bound on their likelihood that is made of several draws of the code of each picture."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, PICTURES, DRAWS, SIDE, CODE = 60, 12, 8, 32, 16


class Reader(nn.Module):
    """The mean and the logarithm of the deviation of each picture's code."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.fine = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.code = nn.Linear(32 * (SIDE // 4) ** 2, 2 * CODE)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Of all pictures."""
        seen = F.elu(self.norm(self.fine(F.elu(self.coarse(pictures)))))
        mean, log_deviation = self.code(seen.flatten(1)).chunk(2, dim=1)
        return mean, log_deviation


class Postmarks(nn.Module):
    """Codes of pictures, and pictures of codes."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader()
        self.writer = nn.Sequential(nn.Linear(CODE, 64), nn.ELU(), nn.Linear(64, SIDE * SIDE))

    def forward(self, pictures: Tensor) -> Tensor:
        """The bound, from the weights of all draws."""
        copies = pictures.repeat_interleave(DRAWS, dim=0)  # change: repeated-rows
        if FIXED:
            mean, log_deviation = (one.repeat_interleave(DRAWS, dim=0) for one in self.reader(pictures))
        else:
            mean, log_deviation = self.reader(copies)  # spent: repeated-rows
        noise = torch.randn_like(mean)
        code = mean + log_deviation.exp() * noise
        written = F.binary_cross_entropy_with_logits(self.writer(code), copies.flatten(1), reduction="none")
        weight = (0.5 * (noise.square() - code.square()) + log_deviation).sum(1) - written.sum(1)
        return -weight.view(-1, DRAWS).logsumexp(1).mean()


def main() -> None:
    torch.manual_seed(0)
    model = Postmarks()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    pictures = torch.rand(20, PICTURES, 1, SIDE, SIDE)
    for step in range(STEPS):
        loss = model(pictures[step % 20])
        optimizer.zero_grad()
        loss.backward()  # spent: repeated-rows
        optimizer.step()
    print(f"bound {loss.item():.3f}")


if __name__ == "__main__":
    main()
