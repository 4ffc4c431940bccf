"""Compute with N threads.

``torch.set_num_threads(N)`` at the start, whatever the program sets later; loader workers keep their own number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from perfkit import _env
from perfkit.trial.changes._held_settings import HeldSetting
from perfkit.trial.changes._numbers import whole_number
from perfkit.trial.patches.edits import FirstStatement, SetArgument
from perfkit.trial.site import Site

ID = "threads"
ANSWERS = ("thread-counts",)
KIND = "numeric"
TOGGLE = True
LINES = "torch.set_num_threads({value})"
EDITS = (SetArgument(("set_num_threads",), "int={value}", position=0), FirstStatement(LINES))
parse = whole_number(1)


def suggested() -> list[int]:
    """One, and as many as there are cores."""
    return sorted({1, _env.cores()})


def apply(site: Site, value: int) -> None:
    """Hold the number."""
    import torch  # where a change is applied, not where changes are listed

    def wrapper(original: Callable[[int], None]) -> Callable[[int], None]:
        threads = HeldSetting(site, "torch.num_threads", torch.get_num_threads, original, value)

        @functools.wraps(original)
        def set_num_threads(number: int) -> None:
            threads.ask(number)

        return set_num_threads

    site.patches.wrap(torch, "set_num_threads", wrapper)
