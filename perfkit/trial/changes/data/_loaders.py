"""Other arguments for every DataLoader that the program makes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from perfkit.trial.site import Site

_PARAMETERS = inspect.signature(DataLoader.__init__).parameters
_NAMES = tuple(_PARAMETERS)
_DEFAULTS = {name: one.default for name, one in _PARAMETERS.items()}


def with_arguments(site: Site, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Construct loaders with other arguments.

    ``changed`` gets the program's arguments by name, and returns those that are to be others.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(_NAMES[1:], args, strict=False)), **kwargs}
            other = changed(given) if site.active else {}
            if any(given.get(name, _DEFAULTS.get(name)) != value for name, value in other.items()):
                site.used()
                given |= other
            original(self, **given)

        return construct

    site.patches.wrap(DataLoader, "__init__", wrapper)


def can_be_shared(dataset: Any) -> bool:
    """Whether several workers would read different samples: False for a stream that does not ask for its part."""
    if not isinstance(dataset, IterableDataset):
        return True
    for kind in type(dataset).__mro__:
        if kind.__module__.partition(".")[0] not in ("torch", "typing", "builtins"):
            # Its file, not its class: a stream may ask through a function beside it.
            with contextlib.suppress(OSError, TypeError):
                if "get_worker_info" in inspect.getsource(sys.modules[kind.__module__]):
                    return True
    return False
