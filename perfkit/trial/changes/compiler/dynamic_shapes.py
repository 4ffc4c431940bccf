"""Compile for any shape.

Every ``torch.compile()`` of the program gets ``dynamic=True``: sizes are symbols from the first compilation on, so a
new size does not compile again. Kernels for any size may be slower than those for one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.trial.patches.edits import SetArgument
from perfkit.trial.site import Site

ID = "dynamic-shapes"
ANSWERS = ("recompiles",)
KIND = "numeric"
LINES = "model.compile(dynamic=True)"
EDITS = (SetArgument(("compile",), "dynamic=True"),)


def apply(site: Site, value: None) -> None:
    """Wrap ``torch.compile``, which ``Module.compile`` calls too."""
    import torch  # where a change is applied, not where changes are listed

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if site.active and kwargs.get("dynamic") is not True:
                site.used()
                kwargs["dynamic"] = True
            return original(*args, **kwargs)

        return compile

    site.patches.wrap(torch, "compile", wrapper)
