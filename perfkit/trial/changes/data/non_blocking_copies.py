"""Copy from pinned memory to the GPU without waiting.

``tensor.to()``, ``tensor.cuda()`` and ``tensor.copy_()`` get ``non_blocking=True`` where they copy from pinned memory:
the host goes on while the copy runs, and kernels that need it wait for it on the device. A program that writes into the
pinned tensor right afterwards would change what is copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.trial.changes._cuda import needs_cuda
from perfkit.trial.patches.edits import SetArgument
from perfkit.trial.site import Site

ID = "non-blocking-copies"
ANSWERS = ("blocking-copy", "pageable-copy", "copies-dominate")
KIND = "exact"
TOGGLE = True
LINES = "batch = batch.to(device, non_blocking=True)  # with DataLoader(..., pin_memory=True)"
EDITS = (SetArgument(("to", "cuda", "copy_"), "non_blocking=True"),)
refuse = needs_cuda


def apply(site: Site, value: None) -> None:
    """Wrap the three methods."""
    import torch  # where a change is applied, not where changes are listed

    def is_pinned(source: Any) -> bool:
        # The device first: it costs less, and a tensor of the GPU is never pinned.
        return isinstance(source, torch.Tensor) and source.device.type == "cpu" and source.is_pinned()

    def wrapper(source_of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def copy(*args: Any, **kwargs: Any) -> Any:
                # A bool among the arguments is the program's own non_blocking.
                given = "non_blocking" in kwargs or any(isinstance(one, bool) for one in args)
                if site.active and not given and is_pinned(source_of(*args, **kwargs)):
                    site.used()
                    kwargs["non_blocking"] = True
                return original(*args, **kwargs)

            return copy

        return wrap

    of_itself = wrapper(lambda tensor, *args, **kwargs: tensor)
    site.patches.wrap(torch.Tensor, "to", of_itself)
    site.patches.wrap(torch.Tensor, "cuda", of_itself)
    site.patches.wrap(torch.Tensor, "copy_", wrapper(lambda tensor, src, *args, **kwargs: src))
