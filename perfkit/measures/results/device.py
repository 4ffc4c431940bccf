"""Numbers of a device: busy, idle and why, its streams, launches, communication and copies."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from perfkit._location import Location

IdleCause = Literal[
    "data loading",
    "sync",
    "allocation",
    "first use",
    "recompiling",
    "copy call",
    "launch call",
    "communication call",
    "optimizer",
    "python",
    "operators",
    "OS call",
    "uninstrumented",
    "other host work",
    "launch latency",
    "queued back to back",
    "another stream",
    "collective",
    "inside a graph",
    "before a graph",
    "unrecorded graph",
    "dependency",
    "no launch in the trace",
    "profiler",
]


#: Idle of a device that waits for the host to launch, by what the host does meanwhile. What no range, op or frame
#: covers is Python where stacks are not recorded.
LATE_LAUNCHES: tuple[IdleCause, ...] = (
    "operators",
    "python",
    "uninstrumented",
    "launch call",
    "launch latency",
    "optimizer",
)


class IdleTime(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of one cause, while the host was in one function of the user's (None: not known).

    ``gaps`` idle intervals hold a part of it.
    """

    cause: IdleCause
    ns: int
    gaps: int
    at: Location | None = None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """One idle interval of a device, with the cause that takes most of it.

    ``event`` is what the host was in, ``range`` the user's range around it, ``before`` the device work that ended
    the interval, on ``stream``; ``step`` the step it is in.
    """

    start_ns: int
    duration_ns: int
    cause: str
    event: str | None = None
    range: str | None = None
    step: int | None = None
    stream: int | None = None
    before: str | None = None


class DeviceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step's part of a device's window.

    It ends when the step has ended on the host and all that it launched on the device, and the next begins there:
    so the steps sum to the window, and work that runs late counts to the step that launched it. ``kernels`` were
    launched in the step; ``late_ns`` is how long after the step's end on the host its work went on.
    """

    step: int
    wall_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    causes: dict[str, int]
    kernels: int
    late_ns: int


class StreamTime(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: busy time, and the gaps between its events, which are no idle time of the device.

    A gap is ``late`` if the event after it was launched after it began, ``back_to_back`` if it is shorter than
    queued events need between them, ``unlinked`` without a launch in the trace, else ``queued``.
    """

    stream: int
    count: int
    busy_ns: int
    late_ns: int
    back_to_back_ns: int
    queued_ns: int
    unlinked_ns: int


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one device did in the window: busy and its parts, idle and its causes (which sum to idle exactly).

    ``exposed_communication_ns`` is communication not hidden under compute or copies.
    ``exposed_copy_ns`` is copying not hidden under compute. ``copies_ns`` is by direction
    (``HtoD``, ``DtoH``, ``DtoD``, ``other``); ``pageable_ns`` the part through pageable memory.
    ``unlinked_share`` is the share of device work whose launch is not in the trace (0 to 1). ``idle`` is idle time by
    cause and place, and ``late_gaps`` the number of the longest gaps that hold 80% of the time in which the host
    launched late: one gap is no habit of a loop.
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
    per_step: tuple[DeviceStep, ...] = ()
    streams: tuple[StreamTime, ...] = ()
    idle: tuple[IdleTime, ...] = ()
    late_gaps: int = 0


class DeviceTurns(msgspec.Struct, frozen=True, kw_only=True):
    """How the devices of one process share the time of its steps, of those that compute for a quarter of the busiest.

    ``compute_ns`` is the time in which each of ``devices`` runs kernels that do not communicate, ``any_ns`` that in
    which any of them does, ``several_ns`` at least two. In ``shared_steps`` of the ``steps`` at least two of them
    compute. In ``dependent_steps`` one depends on another: what it computes follows a copy from device to device, or
    was launched while the other one still computed, and began after that. ``copies`` between devices are peer copies;
    ``at`` is the function that makes them, else the one that launches what waits.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace of a process that uses several devices"

    devices: tuple[int, ...]
    compute_ns: tuple[int, ...]
    window_ns: int
    any_ns: int
    several_ns: int
    steps: int
    shared_steps: int
    dependent_steps: int
    copies: int
    at: Location | None = None


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, percentiles and maximum of a number."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """The API calls that put work on one device.

    ``latency_ns`` reaches from the end of a call to the start of its first work (0 where that began within the
    call). The depth of the queue is the number of launches whose work has not begun, over time; ``depth_over_time``
    holds its mean in equal parts of the window. ``drained`` launches found the device with nothing running and
    nothing queued: their kernels began when the host launched them; ``starved_ns`` is the time in that state.
    ``short_kernels`` of the ``kernels`` took less time than the call that launched them.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace with device work: a window recorded on a machine with a GPU"

    device: int
    steps: int
    count: int
    work: int
    per_step: tuple[int, ...]
    call_ns: int
    latency_ns: Distribution
    kernels: int
    short_kernels: int
    drained: int
    starved_ns: int
    depth: Distribution
    depth_over_time: tuple[float, ...]

    @property
    def short_share(self) -> float | None:
        """The share of kernels that are shorter than their launch, 0 to 1."""
        return self.short_kernels / self.kernels if self.kernels else None

    @property
    def bound_share(self) -> float:
        """The share of launches that the device had to wait for, 0 to 1."""
        return self.drained / self.count


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one name, group size and dtype; ``name`` is the kernel's where the trace has no arguments.

    ``group_size`` is the world's where the trace is too old to have the group's.
    ``bytes`` is what the ``sized`` ones, whose message size is known, moved; the bandwidths are theirs: of the
    algorithm (message size by time), and of the bus (times nccl-tests' factor, to compare with a link's peak), the
    mean and the fastest one's. ``waiting_ns`` is the time beyond the fastest one of the same size or a larger one:
    other ranks came late, since a collective's kernel waits for them. None where there is nothing to compare with.
    """

    name: str
    group_size: int | None
    dtype: str | None
    count: int
    sized: int
    bytes: int | None
    total_ns: int
    exposed_ns: int
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    best_bus_bytes_per_s: float | None
    waiting_ns: int | None


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of one device.

    ``overlap_ns`` runs during compute, ``exposed_ns`` during neither compute nor copies. ``exposed_waiting_ns`` is the
    part of it in which collectives wait for other ranks, None where that is not known of any.
    """

    device: int
    steps: int
    total_ns: int
    overlap_ns: int
    exposed_ns: int
    exposed_waiting_ns: int | None
    collectives: tuple[Collective, ...]


class CopyTime(msgspec.Struct, frozen=True, kw_only=True):
    """Copies (or memsets) of one direction and kind of memory (``Pageable``, ``Pinned``, ``Device``...) on one device.

    ``overlap_ns`` runs during compute kernels. The host waited for ``blocking`` of them, ``blocked_ns`` in all,
    from the call until the host continued. ``bytes_per_s`` is achieved bandwidth: bytes by time on the device.
    ``median_ns``, ``min_ns``, ``max_ns`` and ``deviation_ns`` (of a sample) are of single copies.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace with device work: a window recorded on a machine with a GPU"

    device: int
    kind: Literal["copy", "memset"]
    direction: str | None
    source: str | None
    target: str | None
    steps: int
    count: int
    bytes: int | None
    largest_bytes: int | None
    total_ns: int
    overlap_ns: int
    bytes_per_s: float | None
    blocking: int | None
    blocked_ns: int | None
    median_ns: int | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    deviation_ns: float | None = None
