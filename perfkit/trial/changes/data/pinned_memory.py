"""Put batches into pinned memory.

Every DataLoader gets ``pin_memory=True``: copies of its batches to the GPU need no staging copy by the CPU, and with
``non_blocking=True`` the host does not wait for them.
"""

from __future__ import annotations

from perfkit.trial.site import Site

ID = "pinned-memory"
ANSWERS = ("pageable-copy", "blocking-copy", "copies-dominate")
KIND = "exact"
LINES = "DataLoader(..., pin_memory=True)"


def refuse() -> str | None:
    """Refuse a build without CUDA: pinned memory is for copies to a GPU."""
    import torch  # where a change is applied, not where changes are listed

    return None if torch.version.cuda or torch.version.hip else "this build of torch has no CUDA"


def apply(site: Site, value: None) -> None:
    """Construct loaders with pinned memory."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.data._loaders import with_arguments

    with_arguments(site, lambda given: {"pin_memory": True})
