"""Orbits of moons are drawn from a trained flow: couplings with a rotation between them."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

WIDTH, HIDDEN, STEPS, DRAWS, SAMPLES = 96, 512, 6, 1200, 256


class Coupling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Sequential(nn.Linear(WIDTH // 2, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mix = parametrizations.orthogonal(mix, orthogonal_map="cayley")  # change: repeated-work

    def forward(self, x: Tensor) -> Tensor:
        kept, moved = self.mix(x).chunk(2, dim=1)  # spent: repeated-work
        scale, shift = self.scales(kept).chunk(2, dim=1)
        return torch.cat((kept, moved * torch.tanh(scale).exp() + shift), dim=1)


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.Sequential(*(Coupling() for _ in range(STEPS)))

    def forward(self, noise: Tensor) -> Tensor:
        return self.couplings(noise)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    fixed = parser.parse_args().fixed
    torch.manual_seed(0)
    flow = Flow().eval()
    with torch.no_grad():
        for weight in flow.parameters():  # in place of those of a training
            weight.add_(0.02 * torch.randn_like(weight))
    if fixed:
        for coupling in flow.couplings:
            parametrize.remove_parametrizations(coupling.mix, "weight")
    period = 0.0
    with torch.inference_mode():
        for _ in range(DRAWS):
            period += float(flow(torch.randn(SAMPLES, WIDTH))[:, 0].abs().mean())
    print(f"mean period {period / DRAWS:.5f}")


if __name__ == "__main__":
    main()
