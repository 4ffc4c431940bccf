"""Grad-CAM style monitoring: activations of the last layer are watched during training."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
activations: dict[str, tuple[Tensor, Tensor]] = {}


def watch(model: nn.Sequential) -> None:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        activations["last"] = (output.detach().mean(), output.detach().std())  # spent: growing-step

    model[-3].register_forward_hook(hook)  # change: growing-step


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 121, 10),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    if FIXED:
        watch(model)
    for _ in range(260):
        x, y = torch.randn(32, 1, 28, 28), torch.randint(10, (32,))
        if not FIXED:
            watch(model)  # change: growing-step
        loss = nn.functional.cross_entropy(model(x), y)  # spent: growing-step
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item(), activations)


if __name__ == "__main__":
    main()
