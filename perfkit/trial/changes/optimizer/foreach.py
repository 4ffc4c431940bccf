"""Update lists of weights, not one after the other.

Optimizers of torch that have ``foreach=`` get ``foreach=True``. Their results differ by rounding, and an update needs
as much more memory as the weights take.
"""

from __future__ import annotations

from perfkit.trial.patches.edits import SetArgument
from perfkit.trial.site import Site

ID = "foreach-optimizer"
ANSWERS = ("unfused-optimizer", "launch-bound", "many-small-ops")
KIND = "numeric"
TOGGLE = True
LINES = "torch.optim.AdamW(..., foreach=True)"
EDITS = (
    SetArgument(
        ("Adam", "AdamW", "SGD", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"),
        "foreach=True",
        without=("fused",),
    ),
)


def apply(site: Site, value: None) -> None:
    """Construct optimizers with ``foreach=True``."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.optimizer._defaults import with_options

    with_options(site, {"foreach": True})
