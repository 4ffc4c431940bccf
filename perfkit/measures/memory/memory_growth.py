"""Growth of memory from step to step: of the process, and of its device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfkit.measures.results.memory import MemoryGrowth
from perfkit.run.records import Step

#: Levels before this step belong to the start, when caches, pools and workers are created.
_SETTLED = 20
#: Minimum of readings for steady growth, and the share of them that must be above the one before.
_READINGS = 3
_RISING = 0.8


def measure_memory_growth(rows: Sequence[Step]) -> MemoryGrowth | None:
    """Growth of memory per step, by the levels at the ends of steps; None where none was read twice."""
    device = _slope([(row.step + row.steps, row.memory_bytes) for row in rows])
    process = _slope([(row.step + row.steps, row.rss_bytes) for row in rows])
    if device is None and process is None:
        return None
    peak = max((row.memory_peak_bytes for row in rows if row.memory_peak_bytes is not None), default=None)
    return MemoryGrowth(
        device_bytes_per_step=device[0] if device else None,
        device_readings=device[1] if device else 0,
        process_bytes_per_step=process[0] if process else None,
        process_readings=process[1] if process else 0,
        device_peak_bytes=peak,
        process_bytes=next((row.rss_bytes for row in reversed(rows) if row.rss_bytes is not None), None),
    )


def _slope(levels: Sequence[tuple[int, int | None]]) -> tuple[int, int] | None:
    """(bytes per step, readings): 0 where the level does not rise steadily; None with fewer than two readings."""
    known = [(step, level) for step, level in levels if level is not None and step > _SETTLED]
    if len(known) < 2:
        return None
    steps, values = (np.array(one, float) for one in zip(*known, strict=True))
    rises = np.diff(values) > 0
    if len(known) >= _READINGS and rises.mean() < _RISING:
        return 0, len(known)
    # The median of the rises between neighbours: one jump (a cache, a second loader) is no leak.
    per_step = float(np.median(np.diff(values) / np.diff(steps)))
    return max(0, round(per_step)), len(known)
