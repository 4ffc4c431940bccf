"""What torch.compile did during a step: graphs it compiled, and where it broke them, with its reason.

Read from Dynamo's own counters, and only where the program has loaded Dynamo. The counters are private;
without them everything here is None.
"""

from __future__ import annotations

import sys
from typing import Any

#: Reasons for graph breaks are long and many; these many are kept, the most frequent first.
_REASONS = 20


def _counters() -> Any:
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def compiled_graphs() -> int | None:
    """Graphs compiled in this process so far; None where Dynamo is not in use."""
    counters = _counters()
    return int(counters["stats"]["unique_graphs"]) if counters is not None else None


class CompileCounter:
    """Counts compiled graphs from step to step."""

    def __init__(self) -> None:
        self._graphs = compiled_graphs() or 0

    def since_last(self) -> int | None:
        """Graphs compiled since the last call; None where Dynamo is not in use."""
        now = compiled_graphs()
        if now is None:
            return None
        # The program may reset Dynamo and its counters.
        new, self._graphs = max(0, now - self._graphs), now
        return new


def graph_breaks() -> dict[str, int]:
    """Reason -> how often Dynamo broke a graph for it, in this process so far."""
    counters = _counters()
    if counters is None:
        return {}
    found = sorted(counters["graph_break"].items(), key=lambda item: -item[1])[:_REASONS]
    return {str(reason)[:500]: int(count) for reason, count in found}
