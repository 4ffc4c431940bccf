"""Keep the workers of loaders between epochs.

Every DataLoader with workers gets ``persistent_workers=True``: they are not started again for each epoch. Their random
states go on where others would begin anew, so random augmentation gives other numbers from the same distribution.
"""

from __future__ import annotations

from typing import Any

from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "persistent-workers"
ANSWERS = ("input-bound",)
KIND = "exact"
REDRAWS = True
AFTER = ("workers",)
LINES = "DataLoader(..., persistent_workers=True)"
EDITS = (SetArgument(("DataLoader",), "persistent_workers=True"),)
TRAINER = TrainerArgument(huggingface="dataloader_persistent_workers=True")


def apply(site: Site, value: None) -> None:
    """Construct loaders that have workers so that they keep them."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.data._loaders import with_arguments

    def changed(given: dict[str, Any]) -> dict[str, Any]:
        return {"persistent_workers": True} if given.get("num_workers") else {}

    with_arguments(site, changed)
