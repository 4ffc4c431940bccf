"""Multiply float32 matrices in TF32 on GPUs that have it.

``torch.set_float32_matmul_precision("high")``, and the same for cuDNN: products keep 10 bits of the mantissa, sums 23.
"""

from __future__ import annotations

from perfkit.trial.site import Site

ID = "tf32"
ANSWERS = ("fp32-without-tf32",)
KIND = "numeric"
LINES = 'torch.set_float32_matmul_precision("high")'


def apply(site: Site, value: None) -> None:
    """Set it now; what the program sets later itself holds."""
    import torch  # where a change is applied, not where changes are listed

    before = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    site.patches.add("torch.set_float32_matmul_precision", lambda: torch.set_float32_matmul_precision(before))
    torch.set_float32_matmul_precision("high")
    site.patches.set(torch.backends.cudnn, "allow_tf32", True)
    if before != "high" or not convolutions:
        site.used()
