"""Everything that was measured of one source, which is what rules read."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.measures.results.device import Communication, CopyTime, DeviceTime, Launches
from perfkit.measures.results.host import HostWork, Ops, RangeTime, SourceLines, SyncCall
from perfkit.measures.results.kernel_profiles import KernelProfiles
from perfkit.measures.results.kernels import ApiCall, Kernels, OsCall, Roofline
from perfkit.measures.results.memory import DeviceMemory, MemoryGrowth, MemorySnapshot
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.results.steps import (
    BatchTime,
    CompileCost,
    MeanStep,
    Ranks,
    Throughput,
    TracedStep,
    TypicalStep,
    Utilization,
)
from perfkit.run.records import Lines, Rank, Syncs


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace is: said in reports, and what rules need to know before they believe its numbers."""

    path: str
    format: Literal["kineto", "nsys"]
    events: int
    device_events: int
    devices: tuple[str, ...]
    steps: int
    span_ns: int
    rank: int | None
    world_size: int | None
    has_stacks: bool
    has_shapes: bool
    lost: tuple[str, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the rules may look at. None = this source has no such part.

    ``trace`` parts come from one rank's newest readable window (or from the file given). ``step`` is the typical step,
    ``every_step`` the mean of all timed ones: with what happens in a few of them only.
    """

    source: str
    step: TypicalStep | None = None
    every_step: MeanStep | None = None
    throughput: Throughput | None = None
    utilization: Utilization | None = None
    trace: TraceFacts | None = None
    trace_step: TracedStep | None = None
    ops: Ops | None = None
    ranges: tuple[RangeTime, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    memory_history: tuple[MemorySnapshot, ...] = ()
    roofline: tuple[Roofline, ...] = ()
    devices: tuple[DeviceTime, ...] = ()
    launches: tuple[Launches, ...] = ()
    communication: tuple[Communication, ...] = ()
    copies: tuple[CopyTime, ...] = ()
    sync_calls: tuple[SyncCall, ...] = ()
    api_calls: tuple[ApiCall, ...] = ()
    os_calls: tuple[OsCall, ...] = ()
    kernels: Kernels | None = None
    kernel_profiles: KernelProfiles | None = None
    patterns: Patterns | None = None
    source_lines: SourceLines | None = None
    syncs: Syncs | None = None
    lines: Lines | None = None
    host: tuple[HostWork, ...] = ()
    rank: Rank | None = None
    ranks: Ranks | None = None
    growth: MemoryGrowth | None = None
    compiles: CompileCost | None = None
    batches: BatchTime | None = None
    planned_steps: int | None = None
    missing: tuple[str, ...] = ()
