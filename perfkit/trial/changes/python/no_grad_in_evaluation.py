"""Evaluate without a graph.

Calls of a model in eval mode, from outside of any other module, run under ``torch.no_grad()`` unless an input needs a
gradient. A program that trains a model in eval mode (frozen statistics) ends with torch's error about a missing
``grad_fn``: the change is then reported as failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfkit.trial.patches.edits import Wrap
from perfkit.trial.site import Site

ID = "no-grad-in-evaluation"
ANSWERS = ("grad-in-evaluation",)
KIND = "exact"
TOGGLE = True
LINES = "with torch.no_grad(): evaluate(model)"
EDITS = (Wrap("with torch.no_grad():"),)


def apply(site: Site, value: None) -> None:
    """Run these calls without a graph."""
    import torch  # where a change is applied, not where changes are listed
    from torch.utils._pytree import tree_leaves  # torch

    from perfkit.trial.changes._roots import around_models  # imports torch

    def needs_grad(args: Any) -> bool:
        return any(isinstance(one, torch.Tensor) and one.requires_grad for one in tree_leaves(args))

    def around(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if module.training or not torch.is_grad_enabled() or needs_grad((args, kwargs)):
            return call(module, *args, **kwargs)
        site.used()
        with torch.no_grad():
            return call(module, *args, **kwargs)

    around_models(site, around)
