"""Credit risk from a table, with the share of units of each layer that never answer."""

import sys
from functools import partial

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, COLUMNS, WIDTH = 110, 512, 40, 256


def network() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(COLUMNS, WIDTH), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def note_dead(name: str, dead: dict[str, Tensor], module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
    """Share of units that are zero for the whole batch."""
    dead[name] = (output <= 0).all(dim=0).float().mean()  # spent: growing-step


def watch(model: nn.Sequential, dead: dict[str, Tensor]) -> None:
    """Keep the share of each activation in ``dead``."""
    for name, module in model.named_children():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(partial(note_dead, name, dead))  # change: growing-step


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(BATCH * 10, COLUMNS)
    defaulted = (x[:, :5].sum(1) + torch.randn(len(x)) > 1.5).float()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dead: dict[str, Tensor] = {}
    if FIXED:
        watch(model, dead)
    for step in range(STEPS):
        if not FIXED:
            watch(model, dead)  # change: growing-step
        rows = slice(step % 10 * BATCH, (step % 10 + 1) * BATCH)
        scores = model(x[rows]).squeeze(1)  # spent: growing-step
        loss = nn.functional.binary_cross_entropy_with_logits(scores, defaulted[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, f"{loss.item():.4f}", [f"{share.item():.2f}" for share in dead.values()])


if __name__ == "__main__":
    main()
