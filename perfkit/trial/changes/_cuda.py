"""Changes that concern CUDA alone."""

from __future__ import annotations


def needs_cuda() -> str | None:
    """Refuse a build of torch without CUDA, or its counterpart for AMD's GPUs."""
    import torch  # where a change is applied, not where changes are listed

    return None if torch.version.cuda or torch.version.hip else "this build of torch has no CUDA"
