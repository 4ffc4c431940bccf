"""Restores the modes of a model and the state of random number generators after a measurement."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def evaluation_mode(model: Callable[..., Any]) -> Iterator[None]:
    """Put a module into evaluation mode, and restore the mode of each of its modules afterwards.

    By ``train(mode)``, from the root down: a module may do more in it than set its flag (adapters merge their weights).
    A model in evaluation mode is not changed.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    before = [(module, module.training) for module in modules]
    changed = any(training for _, training in before)
    try:
        if changed:
            modules[0].eval()
        yield
    finally:
        for module, training in before:
            if module.training != training:
                module.train(training)


@contextmanager
def preserved_random_state(devices: list[int]) -> Iterator[None]:
    """Restore the random number generators of Python, numpy and torch afterwards."""
    python = random.getstate()
    numpy: Any = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy is not None else None
    with ExitStack() as stack:
        # Saves and restores the state; sets no seed.
        stack.enter_context(torch.random.fork_rng(devices=devices))
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numpys)
