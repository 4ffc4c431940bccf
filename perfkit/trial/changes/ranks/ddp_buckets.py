"""Exchange gradients in buckets of N MB.

Every DistributedDataParallel gets ``bucket_cap_mb=N``; torch's default is 25. Larger buckets make fewer and longer
all-reduces, smaller ones start earlier in the backward. Sums over more than two ranks may differ by rounding.
"""

from __future__ import annotations

from perfkit.trial.changes._constructors import with_arguments
from perfkit.trial.changes._numbers import whole_number
from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "ddp-buckets"
ANSWERS = ("exposed-communication",)
KIND = "numeric"
LINES = "DistributedDataParallel(model, bucket_cap_mb={value})"
EDITS = (SetArgument(("DistributedDataParallel",), "bucket_cap_mb={value}"),)
TRAINER = TrainerArgument(huggingface="ddp_bucket_cap_mb={value}")
parse = whole_number(1)


def suggested() -> list[int]:
    """Half of torch's default, twice as much, and more."""
    return [12, 50, 100]


def apply(site: Site, value: int) -> None:
    """Construct DistributedDataParallel with this size."""
    # torch is imported where a change is applied, not where changes are listed.
    from torch.nn.parallel import DistributedDataParallel

    with_arguments(site, DistributedDataParallel, lambda given: {"bucket_cap_mb": value})
