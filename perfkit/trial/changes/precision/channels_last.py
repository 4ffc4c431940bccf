"""Keep images with their channels last in memory.

The weights of each model that has 2d convolutions, and its inputs of four dimensions, get
``memory_format=torch.channels_last``, the layout that convolutions in TF32, float16 and bfloat16 compute in.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from perfkit.trial.patches.edits import BeforeLoop
from perfkit.trial.site import Site

ID = "channels-last"
ANSWERS = ("layout-conversion", "channels-first")
KIND = "numeric"
LINES = "model = model.to(memory_format=torch.channels_last); images = images.to(memory_format=torch.channels_last)"
# The layout of convolutions' weights decides: what comes in takes it at the first one.
EDITS = (BeforeLoop("{model}.to(memory_format=torch.channels_last)"),)


def apply(site: Site, value: None) -> None:
    """Change the layout of a model at its first call, and of its inputs at each."""
    import torch  # where a change is applied, not where changes are listed
    from torch.utils._pytree import tree_map  # torch

    from perfkit.trial.changes._roots import around_models  # imports torch

    changed: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def laid_out(one: Any) -> Any:
        is_image = isinstance(one, torch.Tensor) and one.dim() == 4
        return one.to(memory_format=torch.channels_last) if is_image else one

    def around(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if module not in changed:
            changed[module] = any(isinstance(one, torch.nn.Conv2d) for one in module.modules())
            if changed[module]:
                site.used()
                module.to(memory_format=torch.channels_last)
        if changed[module]:
            args, kwargs = tree_map(laid_out, (args, kwargs))
        return call(module, *args, **kwargs)

    around_models(site, around)
