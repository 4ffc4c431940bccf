"""The calls of the program's models: of modules with parameters, from outside of any other module."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from perfkit.trial.site import Site

#: Calls the module: the original, the module, and its arguments.
Around = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


def around_models(site: Site, around: Around) -> None:
    """Call ``around`` in place of each such call."""
    local = threading.local()

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            inside = torch.compiler.is_compiling() or getattr(local, "inside", False)
            if inside or not site.active or next(module.parameters(), None) is None:
                return original(module, *args, **kwargs)
            local.inside = True
            try:
                return around(original, module, args, kwargs)
            finally:
                local.inside = False

        return __call__

    site.patches.wrap_for_instances(torch.nn.Module, "__call__", wrapper)
