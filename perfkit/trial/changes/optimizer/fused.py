"""Update all weights with one fused call.

Optimizers of torch that have ``fused=`` (Adam, AdamW, Adagrad and SGD) get ``fused=True``. Their results differ by
rounding.
"""

from __future__ import annotations

from perfkit.run.records import Rank
from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "fused-optimizer"
ANSWERS = ("unfused-optimizer", "launch-bound", "many-small-ops")
KIND = "numeric"
TOGGLE = True
LINES = "torch.optim.AdamW(..., fused=True)"
EDITS = (SetArgument(("Adam", "AdamW", "Adagrad", "SGD"), "fused=True", without=("foreach",)),)
TRAINER = TrainerArgument(huggingface='optim="adamw_torch_fused"')


def needless(rank: Rank, value: None) -> str | None:
    """Needless where every optimizer is fused."""
    fused = [one.fused for one in rank.optimizers]
    return "the program's optimizers are fused already" if fused and all(fused) else None


def apply(site: Site, value: None) -> None:
    """Construct optimizers with ``fused=True``."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.optimizer._defaults import with_options

    with_options(site, {"fused": True, "foreach": False})
