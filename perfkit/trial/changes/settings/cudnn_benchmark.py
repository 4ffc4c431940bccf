"""Have cuDNN measure its algorithms for each shape, and keep the fastest.

``torch.backends.cudnn.benchmark = True``; it pays where shapes stay the same. What the program sets later itself holds.
"""

from __future__ import annotations

from perfkit.trial.changes._cuda import needs_cuda
from perfkit.trial.changes._held_settings import HeldSetting
from perfkit.trial.patches.edits import FirstStatement, TrainerArgument
from perfkit.trial.site import Site

ID = "cudnn-benchmark"
ANSWERS = ("cudnn-benchmark-off",)
KIND = "numeric"
TOGGLE = True
LINES = "torch.backends.cudnn.benchmark = True"
refuse = needs_cuda
EDITS = (FirstStatement(LINES),)
TRAINER = TrainerArgument(lightning="benchmark=True")


def apply(site: Site, value: None) -> None:
    """Switch it on now, and at each resume."""
    import torch  # where a change is applied, not where changes are listed

    def write(on: bool) -> None:
        torch.backends.cudnn.benchmark = on

    HeldSetting(site, "torch.backends.cudnn.benchmark", lambda: torch.backends.cudnn.benchmark, write, True)
