"""Zero code: Lightning asks for callbacks at the entry points of every installed package; this one has perfkit's.

It runs for each Trainer in the environment, so nothing is imported, and none is given, unless it is asked for.
"""

from __future__ import annotations

import os
from typing import Any


def callbacks() -> list[Any]:
    """A ``ProfilerCallback`` where ``PERFKIT_LIGHTNING`` is ``1`` or names a run folder; else none."""
    wanted = os.environ.get("PERFKIT_LIGHTNING", "")
    if wanted in ("", "0"):
        return []
    from perfkit.integrations.lightning import ProfilerCallback

    return [ProfilerCallback(None if wanted == "1" else wanted)]
