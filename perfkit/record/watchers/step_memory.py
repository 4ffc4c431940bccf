"""Memory from step to step: device memory and its peak, allocator retries, and the process's resident memory.

Counters are read and never reset: they are the program's (``torch.cuda.reset_peak_memory_stats`` is its to call).
Reading them neither waits for the device nor allocates on it.

Run against a simulated CUDA runtime.
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
        stats: Returns the allocator's statistics as ``torch.cuda.memory_stats_as_nested_dict`` does, or {}.
        rss: Returns the process's resident bytes, or None where they are not known.
        device: Returns the device whose statistics these are.
    """

    def __init__(
        self,
        stats: Callable[[], Mapping[str, Any]],
        rss: Callable[[], int | None],
        device: Callable[[], int] = lambda: 0,
    ) -> None:
        self._stats = stats
        self._rss = rss
        self._device = device
        #: Device -> the peak, and the step and the counts of the last reading of those.
        self._peaks: dict[int, int] = {}
        self._counts: dict[int, tuple[int, int, int]] = {}

    def at_end_of(self, step: int) -> dict[str, int | None]:
        """The memory now that ``step`` has ended, by the names of `Step`'s fields; {} or None where it is not read."""
        if (step + 1) % EVERY:
            return {}
        rss_bytes = None if (step + 1) % OVER else self._rss()
        stats = self._stats()
        if not stats:
            return {"rss_bytes": rss_bytes}
        allocated = stats["allocated_bytes"]["all"]
        peak, device = int(allocated["peak"]), self._device()
        # A peak that fell was reset by the program: from here on the new one counts.
        rose, self._peaks[device] = peak > self._peaks.get(device, 0), peak
        retries, allocs = self._since_last(
            step, device, int(stats["num_alloc_retries"]), int(stats.get("num_device_alloc", 0))
        )
        return {
            "memory_bytes": int(allocated["current"]),
            "memory_peak_bytes": peak if rose else None,
            "rss_bytes": rss_bytes,
            "alloc_retries": retries,
            "device_allocs": allocs,
        }

    def _since_last(self, step: int, device: int, retries: int, allocs: int) -> tuple[int | None, int | None]:
        if (step + 1) % OVER:
            return None, None
        before, self._counts[device] = self._counts.get(device), (step, retries, allocs)
        if before is None or step - before[0] != OVER or retries < before[1] or allocs < before[2]:
            # The first reading, steps that were not counted, or counters that the program has reset.
            return None, None
        return retries - before[1], allocs - before[2]


def next_reading(step: int) -> int:
    """The number of the step that begins after the next reading, if ``step`` begins now."""
    every = EVERY if _env.cuda_in_use() else OVER
    return (step // every + 1) * every


def watch_memory() -> MemoryWatch:
    """A watch of this process and, once the program uses one, of the current CUDA device."""
    last = -_APART_NS

    def seldom() -> int | None:
        # Steps may be as short as the reading.
        nonlocal last
        now = _clock.now_ns()
        if now - last < _APART_NS:
            return None
        last = now
        return resident_bytes()

    return MemoryWatch(_device_statistics, seldom, _current_device)


def _device_statistics() -> Mapping[str, Any]:
    """The statistics of the current device; {} without CUDA, and where torch's allocator counts nothing."""
    if not _env.cuda_in_use() or "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        return {}
    torch: Any = _env.torch_if_loaded()
    try:
        found: Mapping[str, Any] = torch.cuda.memory_stats_as_nested_dict()
    except RuntimeError:  # an allocator of the program's, which has no statistics
        return {}
    return found


def _current_device() -> int:
    torch: Any = _env.torch_if_loaded()
    return int(torch.cuda.current_device())


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


def peak_resident_bytes() -> int | None:
    """The largest memory of this process in RAM so far; None where there is no /proc.

    Not ``ru_maxrss``, which counts the process that started this one until ``exec``.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            found = next((line for line in status if line.startswith("VmHWM:")), None)
    except OSError:
        return None
    return int(found.split()[1]) * 1024 if found is not None else None
