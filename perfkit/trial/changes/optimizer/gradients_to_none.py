"""Free gradients instead of filling them with zeros.

``optimizer.zero_grad(set_to_none=False)`` and ``module.zero_grad(set_to_none=False)`` become ``set_to_none=True``:
nothing is filled, and the backward writes instead of adding. A program that reads ``.grad`` between the two finds None.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.run.records import Rank
from perfkit.trial.patches.edits import SetArgument
from perfkit.trial.site import Site

ID = "gradients-to-none"
ANSWERS = ("gradients-not-set-to-none",)
KIND = "exact"
TOGGLE = True
LINES = "optimizer.zero_grad(set_to_none=True)"
EDITS = (SetArgument(("zero_grad",), "set_to_none=True", position=0),)


def needless(rank: Rank, value: None) -> str | None:
    """Needless where no optimizer fills its gradients."""
    filled = [one.keeps_gradients for one in rank.optimizers]
    return "the program sets its gradients to None already" if filled and not any(filled) else None


def apply(site: Site, value: None) -> None:
    """Have both methods free the gradients."""
    import torch  # where a change is applied, not where changes are listed

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def zero_grad(self: Any, set_to_none: bool = True) -> None:
            if site.active and not set_to_none:
                site.used()
                set_to_none = True
            original(self, set_to_none)

        return zero_grad

    site.patches.wrap(torch.optim.Optimizer, "zero_grad", wrapper)
    site.patches.wrap(torch.nn.Module, "zero_grad", wrapper)
