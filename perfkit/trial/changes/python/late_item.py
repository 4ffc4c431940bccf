"""Answer with the value of the step before.

``.item()``, ``.tolist()`` and ``float()`` of a tensor in the line ``FILE:LINE`` return what that line asked for one
call earlier, so the host does not wait for this step's result. It shows the most that reading a number without a sync
could save.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from perfkit._callsite import find_callsite
from perfkit.trial.site import Site

ID = "late-item"
ANSWERS = ("sync-in-step",)
KIND = "bound"
TOGGLE = True
PLACEHOLDER = "FILE:LINE"
LINES = "total += loss.detach()  # and total.item() where it is printed, not in every step: {value}"


def parse(text: str | None) -> str:
    """A line of the program."""
    file, _, line = (text or "").rpartition(":")
    if not file or not line.isascii() or not line.isdigit():
        raise ValueError("a line of the program, as in late-item=train.py:58")
    return f"{file}:{line}"


def apply(site: Site, value: str) -> None:
    """Wrap the methods that read a number."""
    import torch  # where a change is applied, not where changes are listed

    file, _, line = value.rpartition(":")

    def is_there() -> bool:
        place = find_callsite(sys._getframe(2))
        return place is not None and place.line == int(line) and f"/{place.file}".endswith(f"/{file.lstrip('/')}")

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        kept: list[_Copy] = []

        @functools.wraps(original)
        def read(tensor: Any) -> Any:
            if not site.active or not is_there():
                return original(tensor)
            site.used()
            kept.append(_Copy(tensor))
            return original(kept.pop(0).value() if len(kept) > 1 else tensor)

        return read

    for name in ("item", "tolist", "__float__"):
        site.patches.wrap(torch.Tensor, name, wrapper)


class _Copy:
    """What a tensor holds now; on a GPU it is copied to the host without waiting for it."""

    def __init__(self, tensor: Any) -> None:
        import torch  # where a change is applied, not where changes are listed

        self._event: Any = None
        if tensor.is_cuda:
            self._values = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._values.copy_(tensor.detach(), non_blocking=True)
            cuda: Any = torch.cuda
            self._event = cuda.current_stream().record_event()
        else:
            self._values = tensor.detach().clone()

    def value(self) -> Any:
        """The values, once they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._values
