"""Let the blocks of torch's allocator grow instead of splitting them.

``PYTORCH_ALLOC_CONF=expandable_segments:True`` beside what that variable holds already: sizes that differ from step to
step fragment the cache less, so the driver is asked for memory less often. torch reads it when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.trial.changes._cuda import needs_cuda
from perfkit.trial.site import Site

ID = "expandable-segments"
ANSWERS = ("allocator-thrash", "memory-near-limit")
KIND = "exact"
LINES = "PYTORCH_ALLOC_CONF=expandable_segments:True python train.py"
refuse = needs_cuda

#: torch reads the first from 2.9 on, and the second before.
_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def environment(current: Mapping[str, str]) -> dict[str, str]:
    """The variable under both names, with the program's other settings."""
    settings = next((current[name] for name in _NAMES if current.get(name)), "")
    others = [one for one in settings.split(",") if one and not one.strip().startswith("expandable_segments")]
    return dict.fromkeys(_NAMES, ",".join([*others, "expandable_segments:True"]))


def apply(site: Site, value: None) -> None:
    """Count it: the environment holds it."""
    site.used()
