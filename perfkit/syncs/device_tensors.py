"""The tensors of the modules, optimizers and collections that ``device_of=`` names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from perfkit.errors import UsageError


def tensors_of(things: Any) -> list[torch.Tensor]:
    """All tensors of modules, optimizers, tensors, and collections of these, with their gradients.

    Raises:
        UsageError: something else is among them.
    """
    if isinstance(things, torch.Tensor):
        grad = things.grad if things.is_leaf else None
        return [things] if grad is None else [things, grad]
    if isinstance(things, torch.nn.Module):
        things = [*things.parameters(), *things.buffers()]
    elif isinstance(things, torch.optim.Optimizer):
        return _tensors_of_optimizer(things)
    elif isinstance(things, dict):
        things = things.values()
    if isinstance(things, Iterable) and not isinstance(things, (str, bytes)):
        return [tensor for thing in things for tensor in tensors_of(thing)]
    raise UsageError(
        f"device_of= takes modules, optimizers, tensors or collections of them, got {type(things).__qualname__}"
    )


def _tensors_of_optimizer(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = tensors_of([group["params"] for group in optimizer.param_groups])
    # Step counters stay on the host unless the optimizer is fused or capturable.
    steps_on_device = {
        id(parameter)
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for parameter in group["params"]
    }
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and (name != "step" or id(parameter) in steps_on_device):
                found.append(value)
    return found


def check_on_cpu(tensors: list[torch.Tensor]) -> None:
    """Check that a dry run can follow these tensors.

    Raises:
        UsageError: one is not on the CPU.
    """
    with torch._C.DisableTorchFunction():  # an outer dry run would answer with the simulated device
        elsewhere = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)
    if elsewhere is not None:
        raise UsageError(
            f"device_of= takes tensors of a script that runs on the CPU, got one on {elsewhere}: "
            'use mode="cuda" if the program uses the GPU'
        )
