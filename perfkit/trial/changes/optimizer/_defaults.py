"""Other options for every optimizer that the program makes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from perfkit.trial.site import Site


def with_options(site: Site, options: dict[str, Any]) -> None:
    """Construct optimizers of the classes that have these options with them."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def construct(self: Any, params: Any, defaults: dict[str, Any]) -> None:
            if site.active and options.keys() <= defaults.keys() and not _is_set(defaults, options):
                site.used()
                defaults = {**defaults, **options}
            original(self, params, defaults)

        return construct

    site.patches.wrap(Optimizer, "__init__", wrapper)


def _is_set(defaults: dict[str, Any], options: dict[str, Any]) -> bool:
    return all(defaults[name] == value for name, value in options.items())
