"""Other arguments for what the program constructs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from perfkit.trial.site import Site


def with_arguments(site: Site, kind: type, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Construct objects of ``kind``, and of classes derived from it, with other arguments.

    ``changed`` gets the program's arguments by name, and returns those that are to be others.
    """
    parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]  # the class's own, not an instance's
    names = [*parameters][1:]

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            other = changed(given) if site.active else {}
            if any(given.get(name, parameters[name].default) != value for name, value in other.items()):
                site.used()
                given |= other
            original(self, **given)

        return construct

    site.patches.wrap(kind, "__init__", wrapper)
