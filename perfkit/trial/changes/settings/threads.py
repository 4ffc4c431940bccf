"""Compute with N threads.

``torch.set_num_threads(N)`` at the start; what the program sets later itself holds.
"""

from __future__ import annotations

import os

from perfkit.trial.changes._numbers import whole_number
from perfkit.trial.site import Site

ID = "threads"
ANSWERS = ("thread-counts",)
KIND = "numeric"
LINES = "torch.set_num_threads({value})"
parse = whole_number(1)


def suggested() -> list[int]:
    """One, and as many as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sorted({1, cores})


def apply(site: Site, value: int) -> None:
    """Set the number now."""
    import torch  # where a change is applied, not where changes are listed

    before = torch.get_num_threads()
    site.patches.add("torch.set_num_threads", lambda: torch.set_num_threads(before))
    if before != value:
        torch.set_num_threads(value)
        site.used()
