"""The entry point through which Lightning gets perfkit's callback without a change to the program.

Lightning calls it for each Trainer in the environment, so it imports and returns nothing without PERFKIT_LIGHTNING.
"""

from __future__ import annotations

import os
from typing import Any


def callbacks() -> list[Any]:
    """A ``ProfilerCallback`` if ``PERFKIT_LIGHTNING`` is ``1`` or names a run folder; else nothing."""
    setting = os.environ.get("PERFKIT_LIGHTNING", "")
    if setting in ("", "0"):
        return []
    from perfkit.integrations.lightning import ProfilerCallback  # not imported into programs that did not ask for it

    return [ProfilerCallback(None if setting == "1" else setting)]
