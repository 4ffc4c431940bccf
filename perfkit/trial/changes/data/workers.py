"""Load batches in N worker processes.

Every DataLoader that the program makes gets ``num_workers=N``. A stream of data (an ``IterableDataset``) is left as it
is unless its code asks `torch.utils.data.get_worker_info` for its part: each worker would read all of it. Workers have
random states of their own, so random augmentation gives other numbers from the same distribution.
"""

from __future__ import annotations

from typing import Any

from perfkit import _env
from perfkit.run.records import Rank
from perfkit.trial.changes._numbers import whole_number
from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "workers"
ANSWERS = ("input-bound", "cpu-preprocessing")
KIND = "exact"
FIRST = True
REDRAWS = True
LINES = "DataLoader(..., num_workers={value})"
EDITS = (
    SetArgument(
        ("DataLoader",),
        "num_workers={value}",
        position=5,
        without_at_zero=("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"),
    ),
)
TRAINER = TrainerArgument(huggingface="dataloader_num_workers={value}")
parse = whole_number(0)


def suggested() -> list[int]:
    """None, and as many as there are cores beside the training's, by halves."""
    cores = _env.cores()
    return sorted({0, 2, *(cores >> shift for shift in range(3) if cores >> shift)})


def needless(rank: Rank, value: int) -> str | None:
    """Needless where all loaders have this many already."""
    used = {loader.num_workers for loader in rank.loaders}
    return f"the program's loaders have num_workers={value} already" if used == {value} else None


def apply(site: Site, value: int) -> None:
    """Construct loaders with this many workers."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.data._loaders import can_be_shared, with_arguments

    def changed(given: dict[str, Any]) -> dict[str, Any]:
        if value and not can_be_shared(given.get("dataset")):
            return {}
        if value == 0:
            # These need workers: DataLoader raises ValueError where there are none.
            without = {
                "prefetch_factor": None,
                "persistent_workers": False,
                "timeout": 0,
                "multiprocessing_context": None,
            }
            return {"num_workers": 0, **{name: other for name, other in without.items() if name in given}}
        return {"num_workers": value}

    with_arguments(site, changed)
