"""Have cuDNN measure its algorithms for each shape, and keep the fastest.

``torch.backends.cudnn.benchmark = True``; it pays where shapes stay the same.
"""

from __future__ import annotations

from perfkit.trial.site import Site

ID = "cudnn-benchmark"
ANSWERS = ("cudnn-benchmark-off",)
KIND = "numeric"
LINES = "torch.backends.cudnn.benchmark = True"


def refuse() -> str | None:
    """Refuse a build without CUDA: cuDNN comes with it."""
    import torch  # where a change is applied, not where changes are listed

    return None if torch.version.cuda or torch.version.hip else "this build of torch has no CUDA"


def apply(site: Site, value: None) -> None:
    """Switch it on now; what the program sets later itself holds."""
    import torch  # where a change is applied, not where changes are listed

    before = torch.backends.cudnn.benchmark

    def restore() -> None:
        torch.backends.cudnn.benchmark = before

    site.patches.add("torch.backends.cudnn.benchmark", restore)
    if not before:
        torch.backends.cudnn.benchmark = True
        site.used()
