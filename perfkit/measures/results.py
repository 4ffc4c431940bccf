"""The numbers that measures give and rules read: frozen, in ns, each with where it came from.

Not measured = None, never zero. Times and counts are totals over ``steps`` steps unless a field says
"per step".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.run.records import Lines, Phase, Phases, Rank, Syncs


class StepBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step's host time goes.

    ``wall_ns`` and ``phases_ns`` are means per step over the same ``steps`` steps, so the phases sum to
    the wall time (to rounding). ``excluded`` counts the steps left out, by reason. ``window_ns`` is the
    mean step inside windows: against ``wall_ns`` it tells how much recording slowed the step.
    ``memory_peak_bytes`` is the most that was allocated on the device; ``alloc_retries`` and ``device_allocs``
    are totals after the warm-up of 50 steps.
    """

    steps: int
    wall_ns: int
    median_ns: int
    p10_ns: int
    p90_ns: int
    phases_ns: Phases
    source: str
    excluded: dict[str, int] = {}
    window_ns: int | None = None
    samples_per_step: float | None = None
    gc_ns: int | None = None
    recompiles: int | None = None
    memory_peak_bytes: int | None = None
    alloc_retries: int | None = None
    device_allocs: int | None = None


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """One slow step; ``phase`` took the most beyond its median, by ``beyond_ns``, and is None where none did."""

    step: int
    wall_ns: int
    phase: Phase | None
    beyond_ns: int
    gc_ns: int | None = None
    recompiles: int | None = None


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """How fast training goes: rates per second without validation, percentiles of the step, the slowest steps.

    ``samples_per_s`` and ``tokens_per_s`` are None unless every step told them; ``p90_ns`` needs 10 steps, ``p99_ns``
    100. ``excluded`` counts the steps left out, by reason. All of one rank.
    """

    steps: int
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    p50_ns: int
    p90_ns: int | None
    p99_ns: int | None
    slowest: tuple[SlowStep, ...]
    source: str
    excluded: dict[str, int] = {}


class Utilization(msgspec.Struct, frozen=True, kw_only=True):
    """Model FLOPs utilization of one device: ``mfu`` is 0 to 1.

    ``flops`` is the model's operations per step and ``recomputed`` what checkpointing adds to them. ``precision``
    is the one that most of them are computed in, ``peak_flops_per_s`` the device's dense peak for it.
    """

    mfu: float
    flops: int
    recomputed: int
    flops_per_s: float
    precision: str
    peak_flops_per_s: float
    device: str
    source: str


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """One op by name. ``self_ns`` is host time not spent in ops it called; ``device_ns`` is launched device time."""

    name: str
    count: int
    total_ns: int
    self_ns: int
    device_ns: int | None = None


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """A run of ops that repeats: a loop in Python that calls the same few ops again and again.

    ``names`` is one iteration's top-level ops; ``iterations`` and the times are means per step.
    ``host_ns`` spans first op to last on the host, Python between them included; ``op_ns`` is the
    part inside ops; ``device_ns`` the device time launched; ``backward_ns`` the backward nodes of
    those ops (paired by sequence number), None where they could not be paired.
    """

    names: tuple[str, ...]
    iterations: float
    ops: float
    host_ns: int
    op_ns: int
    device_ns: int | None = None
    backward_ns: int | None = None


class Ops(msgspec.Struct, frozen=True, kw_only=True):
    """Host ops of a trace.

    ``floor_ns`` is what one op costs on this host when it has next to nothing to compute (the 10th
    percentile of the leaf ops' own time): the overhead that many small ops pay each.
    """

    steps: int
    count: int
    wall_ns: int
    rows: tuple[OpTime, ...]
    floor_ns: int | None
    repeats: tuple[Repeat, ...] = ()


class RangeTime(msgspec.Struct, frozen=True, kw_only=True):
    """One range by name. ``device_busy_ns`` is the union of device work launched inside it."""

    name: str
    count: int
    host_ns: int
    device_busy_ns: int | None = None
    source: str = ""


IdleCause = Literal[
    "data loading",
    "sync",
    "allocation",
    "module load",
    "copy call",
    "launch call",
    "communication call",
    "optimizer",
    "python",
    "operators",
    "uninstrumented",
    "other host work",
    "launch latency",
    "queued back to back",
    "dependency",
    "graph",
    "no launch in the trace",
    "profiler",
]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """One idle interval of a device, with the cause that takes most of it and the event the host was in."""

    start_ns: int
    duration_ns: int
    cause: str
    event: str | None = None


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one device did in the window: busy and its parts, idle and its causes (which sum to idle exactly).

    ``exposed_communication_ns`` is communication not hidden under compute or copies.
    ``exposed_copy_ns`` is copying not hidden under compute. ``copies_ns`` is by direction
    (``HtoD``, ``DtoH``, ``DtoD``, ``other``); ``pageable_ns`` the part through pageable memory.
    ``unlinked_share`` is the share of device work whose launch is not in the trace (0 to 1).
    """

    device: int
    name: str | None
    window_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    memset_ns: int
    copies_ns: dict[str, int]
    copy_bytes: dict[str, int]
    pageable_ns: int
    overlap_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    kernels: int
    mean_kernel_ns: int | None
    causes: dict[str, int]
    longest: tuple[Gap, ...]
    unlinked_share: float
    graph_launches: int
    steps: int


class SyncCall(msgspec.Struct, frozen=True, kw_only=True):
    """Blocking API calls in a trace (``cudaStreamSynchronize``, ``cudaMemcpy``...) under one user op."""

    name: str
    op: str | None
    range: str | None
    count: int
    blocked_ns: int


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

    ``trace`` parts come from one rank's newest readable window (or from the file given).
    """

    source: str
    step: StepBreakdown | None = None
    throughput: Throughput | None = None
    utilization: Utilization | None = None
    trace: TraceFacts | None = None
    trace_step: StepBreakdown | None = None
    ops: Ops | None = None
    ranges: tuple[RangeTime, ...] = ()
    devices: tuple[DeviceTime, ...] = ()
    sync_calls: tuple[SyncCall, ...] = ()
    syncs: Syncs | None = None
    lines: Lines | None = None
    rank: Rank | None = None
    planned_steps: int | None = None
    missing: tuple[str, ...] = ()
