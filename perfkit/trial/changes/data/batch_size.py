"""Load N samples per batch.

Every DataLoader that puts samples together by itself (it has a ``batch_size``) gets ``batch_size=N``. Each step then
trains on another number of samples, so the training is another one: ``perfkit try --sweep batch-size`` compares sizes
by samples per second.
"""

from __future__ import annotations

from typing import Any

from perfkit.trial.changes._numbers import whole_number
from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "batch-size"
ANSWERS = ("launch-bound", "small-grid", "low-occupancy", "many-small-ops", "python-bound")
KIND = "sweep"
LINES = "DataLoader(..., batch_size={value})"
EDITS = (SetArgument(("DataLoader",), "batch_size={value}", position=1),)
TRAINER = TrainerArgument(huggingface="per_device_train_batch_size={value}")
parse = whole_number(1)


def suggested() -> list[int]:
    """None: sizes depend on that of the program."""
    return []


def apply(site: Site, value: int) -> None:
    """Construct loaders with batches of this size."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.data._loaders import with_arguments

    def changed(given: dict[str, Any]) -> dict[str, Any]:
        # Without automatic batching (batch_size=None) or with batches of a sampler's there is no size to change.
        by_sampler = given.get("batch_sampler") is not None
        return {} if by_sampler or given.get("batch_size", 1) is None else {"batch_size": value}

    with_arguments(site, changed)
