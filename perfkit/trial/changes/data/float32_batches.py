"""Compute in float32 where data came in float64.

Batches of float64 from loaders, and arguments of float64 that models are called with, become float32; so do weights of
float64, at the first call of their model. Models inside DistributedDataParallel keep their weights.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from perfkit.trial.site import Site

ID = "float32-batches"
ANSWERS = ("float64-in-step",)
KIND = "numeric"
LINES = "batch = batch.float()  # where it is made; and no model.double()"


def apply(site: Site, value: None) -> None:
    """Convert batches, arguments and weights."""
    import torch  # where a change is applied, not where changes are listed
    from torch.nn.parallel import DistributedDataParallel  # torch
    from torch.utils._pytree import tree_map  # torch

    from perfkit.trial.changes._roots import around_models  # imports torch
    from perfkit.trial.changes.data._batches import around_batches  # imports torch

    models: weakref.WeakSet[Any] = weakref.WeakSet()

    def as_float32(one: Any) -> Any:
        if isinstance(one, torch.Tensor) and one.dtype == torch.float64:
            site.used()
            return one.float()
        return one

    def around(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if module not in models:
            models.add(module)
            weights = [*module.parameters(), *module.buffers()]
            if any(one.dtype == torch.float64 for one in weights) and not isinstance(module, DistributedDataParallel):
                site.used()
                module.float()
        args, kwargs = tree_map(as_float32, (args, kwargs))
        return call(module, *args, **kwargs)

    around_models(site, around)
    around_batches(site, lambda next_of, iterator: tree_map(as_float32, next_of(iterator)))
