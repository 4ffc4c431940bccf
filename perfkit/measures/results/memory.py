"""Numbers of memory: its level over time, what held the peak, and its growth."""

from __future__ import annotations

import msgspec

from perfkit.run.records import Phase


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """What was allocated and freed on one device inside an op or range, and by it alone.

    ``self_bytes`` is the net change not made by ops (for a range: by ranges) inside.
    """

    allocated_bytes: int
    freed_bytes: int
    self_bytes: int


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that was held at the peak, by who allocated it.

    ``op`` is the innermost op around the allocation, ``top_op`` the outermost (what the user's line called),
    ``function`` the user's innermost Python frame, where the trace has stacks. ``step`` is the one it was
    allocated in, None outside the steps.
    """

    bytes: int
    allocations: int
    op: str | None = None
    top_op: str | None = None
    range: str | None = None
    function: str | None = None
    step: int | None = None


class MemoryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Levels of memory in buckets of equal length, each the highest in its bucket: the peak is among them.

    ``reserved_bytes`` is empty where the trace does not have it.
    """

    start_ns: int
    bucket_ns: int
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...] = ()


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device (``cpu``, ``cuda:0``) over a trace; `MemorySnapshot` is that over a snapshot's history.

    ``peak_bytes`` is the maximum that was allocated, at ``peak_ns`` (on the trace's clock, None where a snapshot has no
    times, as then the ``timeline``), in ``peak_step`` and ``peak_phase`` if those are known. ``held`` lists who held
    it then, largest first; ``other_bytes`` are the holders that are not listed, ``before_bytes`` what was allocated
    before the trace began: the three sum to the peak. Where the trace has no addresses, ``held`` is empty and
    ``other_bytes`` None. ``is_absolute`` is False where levels count from the trace's start, since it has
    only changes, or only those of the recording (the host).
    ``step_end_bytes`` are the levels at the ends of the steps: rising ones are a leak.
    """

    device: str
    peak_bytes: int
    peak_ns: int | None
    peak_step: int | None = None
    peak_phase: Phase | None = None
    reserved_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    is_absolute: bool
    allocations: int
    frees: int
    held: tuple[MemoryHolder, ...]
    other_bytes: int | None
    before_bytes: int | None
    step_end_bytes: tuple[int, ...] = ()
    timeline: MemoryTimeline | None = None


class MemorySnapshot(DeviceMemory, frozen=True, kw_only=True):
    """Memory of one device over the history in a memory snapshot of torch."""


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of memory per step, 0 where its level does not rise steadily, and the number of readings.

    ``process_bytes`` is the process's resident memory at the last reading.
    """

    device_bytes_per_step: int | None
    device_readings: int
    process_bytes_per_step: int | None
    process_readings: int
    device_peak_bytes: int | None = None
    process_bytes: int | None = None
