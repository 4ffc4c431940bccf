"""Meta-learning: weights from which one step of gradient descent learns a new wave from forty points."""

import sys

import torch
from torch import Tensor, nn
from torch.func import functional_call

FIXED = "--fixed" in sys.argv
STEPS, TASKS, SHOTS, RATE, WIDTH = 90, 3, 40, 0.02, 160

torch.manual_seed(0)
if not FIXED:
    torch.autograd.set_detect_anomaly(True)  # change: anomaly-detection

model = nn.Sequential(
    nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
    nn.Linear(WIDTH, 1),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def wave() -> tuple[Tensor, Tensor]:
    """Points of a wave with a height and a phase of its own."""
    x = 10 * torch.rand(2 * SHOTS, 1) - 5
    height, phase = 0.1 + 4.9 * torch.rand(()), 3.1 * torch.rand(())
    return x, height * torch.sin(x - phase)


def adapted(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The weights after two steps on these points."""
    weights = dict(model.named_parameters())
    for _ in range(2):
        loss = (functional_call(model, weights, (x,)) - y).square().mean()  # spent: anomaly-detection
        gradients = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)  # spent: anomaly-detection
        weights = {
            name: weight - RATE * gradient for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
    return weights


for step in range(STEPS):
    losses = []
    for _ in range(TASKS):
        x, y = wave()
        weights = adapted(x[:SHOTS], y[:SHOTS])  # spent: anomaly-detection
        losses.append((functional_call(model, weights, (x[SHOTS:],)) - y[SHOTS:]).square().mean())
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()  # spent: anomaly-detection
    optimizer.step()
    if step % 20 == 0:
        print(f"{step}: {loss.item():.4f}")
print(f"last {loss.item():.4f}")
