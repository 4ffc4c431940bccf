"""Logs the loss of each step without an edit: what the step's first backward starts from."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from perfkit._patches import Patches

if TYPE_CHECKING:
    from perfkit.profiler import profile


def log_losses(prof: profile) -> Patches:
    """Log them from now on, until the patches are undone. Reading a loss from a device is a sync."""
    patches = Patches()
    logged = -1

    def wrapper(backward: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(backward)
        def run_backward(tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            nonlocal logged
            step = prof.step_num
            first = tensors[0] if isinstance(tensors, tuple | list) and tensors else tensors
            if logged < step and isinstance(first, torch.Tensor) and first.numel() == 1:
                logged = step
                # A complex number, or a tensor without values: a loss that cannot be logged ends no training.
                with contextlib.suppress(Exception):
                    prof.log(loss=first.item())
            backward(tensors, *args, **kwargs)

        return run_backward

    patches.wrap(torch.autograd, "backward", wrapper)
    return patches
