"""Kernels that are slow because images have their channels first."""

from __future__ import annotations

import re

#: torch's own batch norms for channels first, which have one block for each channel; those for channels last are named
#: so.
_BATCH_NORM = re.compile(r"batch_norm_(?!\w*channels_last)\w*kernel")
#: cuDNN's, which torch calls in float32 and float16, have one block for each channel, too, and are fast with many.
_CUDNN = re.compile(r"\bbn_(?:fw|bw)\w*_1C11_")


def is_channels_first_norm(name: str) -> bool:
    """Whether a kernel of this name is torch's batch norm with one block for each channel."""
    return _BATCH_NORM.search(name) is not None


def has_a_block_per_channel(name: str) -> bool:
    """Whether a kernel of this name is cuDNN's batch norm with one block for each channel."""
    return _CUDNN.search(name) is not None
