"""Kernels that are slow because images have their channels first."""

from __future__ import annotations

import re

#: torch's own batch norms for channels first, which have one block for each channel; those for channels last are named
#: so. cuDNN's, which torch calls for float16 and float32, have other names.
_BATCH_NORM = re.compile(r"batch_norm_(?!\w*channels_last)\w*kernel")


def is_channels_first_norm(name: str) -> bool:
    """Whether a kernel of this name is a batch norm with one block for each channel."""
    return _BATCH_NORM.search(name) is not None
