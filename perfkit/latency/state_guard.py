"""A model and the process's state, as they were after a measurement as before it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def evaluating(model: Callable[..., Any]) -> Iterator[None]:
    """Put a module into evaluation mode, and each of its modules back into its own mode afterwards.

    By ``train(mode)``, from the root on: a module may do more in it than set its flag (adapters that merge their
    weights do). A model that is in evaluation mode is not touched.
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
def random_state_kept(devices: list[int]) -> Iterator[None]:
    """Python's, numpy's and torch's random numbers go on afterwards as if nothing had been drawn."""
    python = random.getstate()
    numpy: Any = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy is not None else None
    with ExitStack() as stack:
        # Saves and restores; it sets no seed.
        stack.enter_context(torch.random.fork_rng(devices=devices))
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numpys)
