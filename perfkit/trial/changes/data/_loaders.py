"""Other arguments for every DataLoader that the program makes."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from perfkit.trial.changes import _constructors
from perfkit.trial.site import Site


def with_arguments(site: Site, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Construct loaders with other arguments, see `perfkit.trial.changes._constructors.with_arguments`."""
    _constructors.with_arguments(site, DataLoader, changed)


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
