"""Memory from step to step: device memory and its peak, allocator retries, and the process's resident memory.

Counters are read and never reset: they are the program's (``torch.cuda.reset_peak_memory_stats`` is its to call).
Reading them neither waits for the device nor allocates on it.

Not run on a GPU yet; the logic is tested with statistics that a test makes up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from perfkit import _clock, _env

#: Steps between two readings. For one, torch builds a dict of some hundred numbers in tens of microseconds; every tenth
#: step that is a few microseconds per step, a third of what the whole clock may cost (12 us).
EVERY = 10
#: Steps over which retries and cudaMalloc calls are counted: after warm-up both should be zero for long, and fifty
#: steps are still few enough to show when it began. The process's size is read as often: reading /proc takes 40 us
#: inside a training loop, and a process that grows does so over many steps.
OVER = 50
#: With at least this time in between, a reading of the process's size is a thousandth of the time.
_APART_NS = 50_000_000


class MemoryWatch:
    """Reads device memory at the end of every tenth step, and the process's size every fifty.

    Args:
        stats: Returns the allocator's statistics as ``torch.cuda.memory_stats_as_nested_dict`` does, or {}; None where
            there is no device.
        rss: Returns the process's resident bytes, or None where they are not known.
    """

    def __init__(self, stats: Callable[[], Mapping[str, Any]] | None, rss: Callable[[], int | None]) -> None:
        self._stats = stats
        self._rss = rss
        self._peak = 0
        self._counts: tuple[int, int] | None = None
        self._counted_at = -1

    def at_end_of(self, step: int) -> dict[str, int | None]:
        """The memory now that ``step`` has ended, by the names of `Step`'s fields; {} or None where it is not read."""
        if (step + 1) % EVERY:
            return {}
        rss_bytes = None if (step + 1) % OVER else self._rss()
        stats = self._stats() if self._stats is not None else None
        if not stats:
            return {"rss_bytes": rss_bytes}
        allocated = stats["allocated_bytes"]["all"]
        peak = int(allocated["peak"])
        # A peak that fell was reset by the program: from here on the new one counts.
        rose, self._peak = peak > self._peak, peak
        retries, allocs = self._since_last(step, int(stats["num_alloc_retries"]), int(stats.get("num_device_alloc", 0)))
        return {
            "memory_bytes": int(allocated["current"]),
            "memory_peak_bytes": peak if rose else None,
            "rss_bytes": rss_bytes,
            "alloc_retries": retries,
            "device_allocs": allocs,
        }

    def _since_last(self, step: int, retries: int, allocs: int) -> tuple[int | None, int | None]:
        if (step + 1) % OVER:
            return None, None
        before, at = self._counts, self._counted_at
        self._counts, self._counted_at = (retries, allocs), step
        if before is None or step - at != OVER or retries < before[0] or allocs < before[1]:
            # The first reading, steps that were not counted, or counters that the program has reset.
            return None, None
        return retries - before[0], allocs - before[1]


def next_reading(step: int) -> int:
    """The number of the step that begins after the next reading, if ``step`` begins now."""
    every = EVERY if _env.cuda_in_use() else OVER
    return (step // every + 1) * every


def watch_memory() -> MemoryWatch:
    """A watch of this process and, where one is in use, of the current CUDA device."""
    torch: Any = _env.torch_if_loaded() if _env.cuda_in_use() else None
    last = -_APART_NS

    def seldom() -> int | None:
        # Steps may be as short as the reading.
        nonlocal last
        now = _clock.now_ns()
        if now - last < _APART_NS:
            return None
        last = now
        return resident_bytes()

    return MemoryWatch(torch.cuda.memory_stats_as_nested_dict if torch is not None else None, seldom)


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def resident_bytes() -> int | None:
    """Memory of this process in RAM, shared pages included; None where there is no /proc."""
    try:
        # Opened anew each time: after a fork, an open file would still have the parent's size.
        statm = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(os.read(statm, 64).split()[1]) * _PAGE
    finally:
        os.close(statm)
