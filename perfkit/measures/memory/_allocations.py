"""Memory events: on which device, inside which op or range, and what they changed in all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from perfkit.measures._nested import find_open, sum_by
from perfkit.measures.results.memory import MemoryChange
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints


def device_name(device: int) -> str:
    """Torch's name for the device of a memory event."""
    return "cpu" if device < 0 else f"cuda:{device}"


def byte_counts(numbers: npt.NDArray[np.float64]) -> Ints | None:
    """Byte counts; None where one is missing. Below 2**53 a float holds them exactly."""
    usable = np.isfinite(numbers) & (np.abs(numbers) < 2.0**53)
    return numbers.astype(np.int64) if usable.all() else None


def find_allocators(trace: Trace, wanted: Bools) -> tuple[Ints, Ints]:
    """Rows of the memory events, and the innermost wanted row in which each happened; -1 for none."""
    events = np.flatnonzero(trace.is_kind(Kind.MEMORY))
    if not events.size:
        return events, events
    holders = find_open(trace, np.flatnonzero(wanted), trace.track[events], trace.start_ns[events])
    return events, holders


def changes_by_place(trace: Trace, events: Ints, place: Ints, size: int) -> Iterator[tuple[int, Ints, Ints]]:
    """Device by device, the bytes allocated and those freed at each place (0 to ``size`` - 1)."""
    for device in np.unique(trace.device[events]).tolist():
        mine = trace.device[events] == device
        change = trace.bytes[events[mine]]
        allocated, freed = (sum_by(place[mine], np.maximum(part, 0), size) for part in (change, -change))
        yield device, allocated, freed


def write_changes(
    found: list[dict[str, MemoryChange]], device: int, allocated: Ints, freed: Ints, by_itself: Ints
) -> None:
    """Add one device's changes to the table of each name, where there were any."""
    for i in np.flatnonzero((allocated > 0) | (freed > 0)).tolist():
        found[i][device_name(device)] = MemoryChange(
            allocated_bytes=int(allocated[i]), freed_bytes=int(freed[i]), self_bytes=int(by_itself[i])
        )
