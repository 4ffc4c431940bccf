"""Leave the garbage collector to itself, and keep what is there at the first step out of it.

``gc.collect()`` of the program does nothing, and at the first ``optimizer.zero_grad()`` ``gc.freeze()`` takes all that
is alive out of later collections: a full one then does not go through all of torch's and the dataset's objects.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

from perfkit.trial.patches.edits import BeforeLoop, RemoveStatement
from perfkit.trial.site import Site

ID = "no-collections"
ANSWERS = ("gc-pauses",)
KIND = "exact"
TOGGLE = True
LINES = "gc.collect(); gc.freeze()  # once, before the loop"
EDITS = (RemoveStatement(("collect",)), BeforeLoop("gc.collect()\ngc.freeze()"))


def apply(site: Site, value: None) -> None:
    """Replace ``gc.collect``, and freeze at the first ``zero_grad``."""
    import torch  # where a change is applied, not where changes are listed

    frozen = False

    def not_collecting(original: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(original)
        def collect(generation: int = 2) -> int:
            if not site.active:
                return original(generation)
            site.used()
            return 0

        return collect

    def freezing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def zero_grad(self: Any, set_to_none: bool = True) -> None:
            nonlocal frozen
            if site.active and not frozen:
                frozen = True
                real_collect()
                site.patches.add("gc.freeze", gc.unfreeze)
                site.switch(gc.freeze, gc.unfreeze)
                site.used()
            original(self, set_to_none)

        return zero_grad

    real_collect = gc.collect
    site.patches.wrap(gc, "collect", not_collecting)
    site.patches.wrap(torch.optim.Optimizer, "zero_grad", freezing)
