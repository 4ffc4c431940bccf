"""Have each worker load N batches ahead.

Every DataLoader with workers gets ``prefetch_factor=N``; torch's default is 2. It helps where some batches take much
longer than others, and costs the memory of the batches.
"""

from __future__ import annotations

from typing import Any

from perfkit.trial.changes._numbers import whole_number
from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "prefetch"
ANSWERS = ("input-bound",)
KIND = "exact"
AFTER = ("workers",)
LINES = "DataLoader(..., prefetch_factor={value})"
EDITS = (SetArgument(("DataLoader",), "prefetch_factor={value}"),)
TRAINER = TrainerArgument(huggingface="dataloader_prefetch_factor={value}")
parse = whole_number(1)


def suggested() -> list[int]:
    """Twice torch's default, and more."""
    return [4, 8]


def apply(site: Site, value: int) -> None:
    """Construct loaders that have workers with this many batches ahead."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.data._loaders import with_arguments

    def changed(given: dict[str, Any]) -> dict[str, Any]:
        return {"prefetch_factor": value} if given.get("num_workers") else {}

    with_arguments(site, changed)
