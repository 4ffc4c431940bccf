"""Allow algorithms whose results are not the same each time.

``torch.use_deterministic_algorithms(True)`` is not carried out: many ops have faster algorithms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.trial.site import Site

ID = "nondeterministic"
ANSWERS = ("deterministic-mode",)
KIND = "numeric"
LINES = "torch.use_deterministic_algorithms(False)"


def apply(site: Site, value: None) -> None:
    """Leave the mode off."""
    import torch  # where a change is applied, not where changes are listed

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
            if site.active and mode:
                site.used()
                return
            original(mode, warn_only=warn_only)

        return use_deterministic_algorithms

    site.patches.wrap(torch, "use_deterministic_algorithms", wrapper)
