"""Let gradients lie in the buckets in which ranks exchange them.

Every DistributedDataParallel gets ``gradient_as_bucket_view=True``: gradients are not copied into the buckets and out
again. A program must not detach them in place.
"""

from __future__ import annotations

from perfkit.trial.changes._constructors import with_arguments
from perfkit.trial.patches.edits import SetArgument
from perfkit.trial.site import Site

ID = "ddp-bucket-view"
ANSWERS = ("exposed-communication",)
KIND = "exact"
LINES = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
EDITS = (SetArgument(("DistributedDataParallel",), "gradient_as_bucket_view=True"),)


def apply(site: Site, value: None) -> None:
    """Construct DistributedDataParallel with it."""
    # torch is imported where a change is applied, not where changes are listed.
    from torch.nn.parallel import DistributedDataParallel

    with_arguments(site, DistributedDataParallel, lambda given: {"gradient_as_bucket_view": True})
