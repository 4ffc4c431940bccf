"""Multiply float32 matrices in TF32 on GPUs that have it.

``torch.set_float32_matmul_precision("high")`` whatever the program sets, and the same for cuDNN: products keep 10 bits
of the mantissa, sums 23.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from perfkit.trial.changes._held_settings import HeldSetting
from perfkit.trial.patches.edits import FirstStatement, SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "tf32"
ANSWERS = ("fp32-without-tf32",)
KIND = "numeric"
TOGGLE = True
LINES = 'torch.set_float32_matmul_precision("high")'
EDITS = (SetArgument(("set_float32_matmul_precision",), 'precision="high"', position=0), FirstStatement(LINES))
TRAINER = TrainerArgument(huggingface="tf32=True")


def apply(site: Site, value: None) -> None:
    """Hold both settings."""
    import torch  # where a change is applied, not where changes are listed

    def wrapper(original: Callable[[str], None]) -> Callable[[str], None]:
        products = HeldSetting(
            site, "torch.float32_matmul_precision", torch.get_float32_matmul_precision, original, "high"
        )

        @functools.wraps(original)
        def set_float32_matmul_precision(precision: str) -> None:
            products.ask(precision)

        return set_float32_matmul_precision

    def allow(on: bool) -> None:
        torch.backends.cudnn.allow_tf32 = on

    site.patches.wrap(torch, "set_float32_matmul_precision", wrapper)
    HeldSetting(site, "torch.backends.cudnn.allow_tf32", lambda: torch.backends.cudnn.allow_tf32, allow, True)
