"""Two processes that average their gradients one parameter after another, once the backward pass is over."""

import sys

import torch
import torch.distributed as dist
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS = 70


def average_gradients(model: nn.Module) -> None:
    """The mean of both processes' gradients."""
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if FIXED:
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        parts = (flat / dist.get_world_size()).split([grad.numel() for grad in grads])
        torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)])
        return
    for grad in grads:
        dist.all_reduce(grad)  # spent: exposed-communication  # change: exposed-communication
        grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(24) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    torch.manual_seed(dist.get_rank())
    for _step in range(STEPS):
        loss = model(torch.randn(128, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)  # spent: exposed-communication  # change: exposed-communication
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
