"""Put batches into pinned memory.

Every DataLoader gets ``pin_memory=True``: copies of its batches to the GPU need no staging copy by the CPU, and with
``non_blocking=True`` the host does not wait for them.
"""

from __future__ import annotations

from perfkit.run.records import Rank
from perfkit.trial.changes._cuda import needs_cuda
from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "pinned-memory"
ANSWERS = ("pageable-copy", "blocking-copy", "copies-dominate")
KIND = "exact"
LINES = "DataLoader(..., pin_memory=True)"
refuse = needs_cuda
EDITS = (SetArgument(("DataLoader",), "pin_memory=True", position=7),)
TRAINER = TrainerArgument(huggingface="dataloader_pin_memory=True")


def needless(rank: Rank, value: None) -> str | None:
    """Needless where all loaders pin their batches."""
    pinned = [loader.pin_memory for loader in rank.loaders]
    return "the program's loaders have pin_memory=True already" if pinned and all(pinned) else None


def apply(site: Site, value: None) -> None:
    """Construct loaders with pinned memory."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.data._loaders import with_arguments

    with_arguments(site, lambda given: {"pin_memory": True})
