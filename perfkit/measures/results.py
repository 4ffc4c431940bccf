"""The numbers that measures give and rules read: frozen, in ns, each with where it came from.

Not measured = None, never zero. Times and counts are totals over ``steps`` steps unless a field says
"per step".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.run.records import LineRow, Lines, Phase, Phases, Rank, Syncs


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


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """What was allocated and freed on one device inside an op or range, and by it alone.

    ``self_bytes`` is the net change not made by ops (for a range: by ranges) inside.
    """

    allocated_bytes: int
    freed_bytes: int
    self_bytes: int


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """One op by name; sums over its calls.

    ``self_ns`` is host time not spent in ops it called; ``device_ns`` the device work launched inside it,
    ``device_self_ns`` that which no op it called launched. ``backward_ns`` and ``backward_device_ns`` are the host time
    of the autograd nodes that it made, and the device work launched in them; None where none could be paired.
    ``memory`` is by device (``cpu``, ``cuda:0``), None without memory events.
    """

    name: str
    count: int
    total_ns: int
    self_ns: int
    device_ns: int | None = None
    device_self_ns: int | None = None
    backward_ns: int | None = None
    backward_device_ns: int | None = None
    memory: dict[str, MemoryChange] | None = None


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """A run of ops that repeats: a loop in Python that calls the same few ops again and again.

    ``names`` is one iteration's top-level ops; ``iterations`` and the times are means per step.
    ``host_ns`` spans first op to last on the host, Python between them included; ``op_ns`` is the
    part inside ops; ``device_ns`` the device time launched; ``backward_ns`` the backward nodes of
    those ops (paired by sequence number), None where they could not be paired. ``range`` is the innermost range
    that most of its ops run in; ``function`` the user's Python frame, as the trace names it, where it has stacks.
    """

    names: tuple[str, ...]
    iterations: float
    ops: float
    host_ns: int
    op_ns: int
    device_ns: int | None = None
    backward_ns: int | None = None
    range: str | None = None
    function: str | None = None


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
    """One range by name.

    ``host_ns`` sums its durations; ``self_ns`` leaves out ranges inside it on its thread. ``device_busy_ns`` is the
    union of the device work launched inside it, ``device_self_busy_ns`` of that which no range inside it launched.
    ``backward_ns`` is the time of the autograd nodes that its ops made, ``backward_device_busy_ns`` the union of the
    device work launched in them: for a range around the backward as well, a part of ``device_busy_ns``. None where
    none could be paired. ``memory`` is by device, None without memory events.
    """

    name: str
    count: int
    host_ns: int
    self_ns: int | None = None
    device_busy_ns: int | None = None
    device_self_busy_ns: int | None = None
    backward_ns: int | None = None
    backward_device_busy_ns: int | None = None
    memory: dict[str, MemoryChange] | None = None
    source: str = ""


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

    ``reserved_bytes`` is empty where the trace does not hold it.
    """

    start_ns: int
    bucket_ns: int
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...] = ()


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device (``cpu``, ``cuda:0``) over a trace, or over the history in a memory snapshot.

    ``peak_bytes`` is the most that was allocated, at ``peak_ns`` (on the trace's clock, None where a snapshot has no
    times, as then the ``timeline``), in ``peak_step`` and ``peak_phase`` if those are known. ``held`` lists who held
    it then, largest first; ``other_bytes`` are the holders that are not listed, ``before_bytes`` what was allocated
    before the trace began: the three sum to the peak. Where the trace holds no addresses, ``held`` is empty and
    ``other_bytes`` None. ``is_absolute`` is False where levels count from the trace's start, since it holds changes
    only, or knows only what it saw (the host).
    ``step_end_bytes`` are the levels at the ends of the steps: rising ones are a leak.
    """

    device: str
    peak_bytes: int
    peak_ns: int | None
    peak_step: int | None
    peak_phase: Phase | None
    reserved_bytes: int | None
    reserved_peak_bytes: int | None
    is_absolute: bool
    allocations: int
    frees: int
    held: tuple[MemoryHolder, ...]
    other_bytes: int | None
    before_bytes: int | None
    step_end_bytes: tuple[int, ...]
    timeline: MemoryTimeline | None


Bound = Literal["compute", "memory", "neither", "unknown"]


class RooflinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one op with the same shapes, against what the device can do.

    ``flops`` and ``bytes`` are of one call, ``device_ns`` of all kernels of all ``count`` calls. ``intensity`` is in
    FLOP per byte. The shares are 0 to 1 of the peak in ``precision`` and of the memory's bandwidth. ``bound`` is the
    larger of the two, ``neither`` where both are small. ``confidence`` is ``low`` where a type was assumed, or a share
    above 1 shows that the numbers do not fit (a kernel missing, data that stayed in the cache).
    """

    op: str
    shapes: str
    precision: str
    count: int
    device_ns: int
    flops: int
    bytes: int
    intensity: float
    flops_per_s: float
    bytes_per_s: float
    compute_share: float
    memory_share: float
    bound: Bound
    confidence: Literal["high", "low"]


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Where the kernels of one device lie under its roof, over ``steps`` steps (1 for a trace without).

    ``time_ns`` is kernel time by what bounds it, summing to ``device_ns``; ``unknown`` are kernels of ops whose work
    cannot be told from their arguments. ``peaks_source`` names the document of the peaks. ``problem`` says why
    nothing could be placed, None where something was. ``points`` are the longest ones.
    """

    device: int
    name: str | None
    steps: int
    device_ns: int
    time_ns: dict[str, int]
    peaks_source: str | None = None
    problem: str | None = None
    points: tuple[RooflinePoint, ...] = ()


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


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """One idle interval of a device, with the cause that takes most of it.

    ``event`` is what the host was in, ``range`` the user's range around it, ``before`` the device work that ended
    the interval, on ``stream``; ``step`` the step it lies in.
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
    per_step: tuple[DeviceStep, ...] = ()
    streams: tuple[StreamTime, ...] = ()


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a number is spread."""

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
    nothing queued: their kernels began when the host came to them; ``starved_ns`` is the time in that state.
    ``short_kernels`` of the ``kernels`` took less time than the call that launched them.
    """

    device: int
    steps: int
    count: int
    work: int
    per_step: tuple[int, ...]
    call_ns: int
    latency_ns: Spread
    kernels: int
    short_kernels: int
    drained: int
    starved_ns: int
    depth: Spread
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

    ``group_size`` is the world's where the trace is too old to tell the group's.
    ``bytes`` is what the ``sized`` ones, whose message size is known, moved; the bandwidths are theirs: of the
    algorithm (message size by time), and of the bus (times nccl-tests' factor, to compare with a link's peak), the
    mean and the fastest one's. ``waiting_ns`` is the time beyond the fastest one of the same size: a hint of other
    ranks that came late, since a collective's kernel waits for them.
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

    ``overlap_ns`` runs beside compute, ``exposed_ns`` beside neither compute nor copies.
    """

    device: int
    steps: int
    total_ns: int
    overlap_ns: int
    exposed_ns: int
    collectives: tuple[Collective, ...]


class CopyTime(msgspec.Struct, frozen=True, kw_only=True):
    """Copies (or memsets) of one direction and kind of memory (``Pageable``, ``Pinned``, ``Device``...) on one device.

    ``overlapped_ns`` runs beside compute kernels. The host waited for ``blocking`` of them, ``blocked_ns`` in all,
    from the call until it went on. ``bytes_per_s`` is achieved bandwidth: bytes by time on the device.
    """

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
    overlapped_ns: int
    bytes_per_s: float | None
    blocking: int | None
    blocked_ns: int | None


class SyncCall(msgspec.Struct, frozen=True, kw_only=True):
    """Blocking API calls in a trace (``cudaStreamSynchronize``, ``cudaMemcpy``...) under one user op."""

    name: str
    op: str | None
    range: str | None
    count: int
    blocked_ns: int


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one user line did; where ``line`` is None, what a function did on lines that are not known.

    ``first_line`` is where the function begins. ``self_ns`` is host time in the line with the ops and libraries it
    called, ``total_ns`` with the user's functions that it called. ``ops`` are the ops it called itself (not those that
    ops called), ``op_ns`` the host time in them, ``launches`` and ``device_ns`` the device work that it put on a
    stream, ``syncs`` the calls in which it waited for the device, for ``blocked_ns``; these are None in a trace without
    device work. ``allocations`` and ``allocated_bytes`` are None without memory events.

    ``backward_ns`` is host time of the autograd nodes that its ops made, ``backward_launches`` and
    ``backward_device_ns`` what they put on a stream: they are no part of the other numbers of this line.
    """

    file: str
    line: int | None
    first_line: int
    function: str
    owner: str
    self_ns: int = 0
    total_ns: int = 0
    ops: int = 0
    op_ns: int = 0
    launches: int | None = None
    device_ns: int | None = None
    syncs: int | None = None
    blocked_ns: int | None = None
    backward_ns: int | None = None
    backward_launches: int | None = None
    backward_device_ns: int | None = None
    allocations: int | None = None
    allocated_bytes: int | None = None


class SourceLines(msgspec.Struct, frozen=True, kw_only=True):
    """The user's lines in the step for lines, longest ``total_ns`` first.

    Following lines makes a step slower: its times say where, and how lines compare, not how long. Of all ops,
    ``exact`` is the share (0 to 1) whose line is known, ``function_only`` of those with no more than a function; the
    rest ran in no Python of the user's or of a library's.
    """

    source: str
    steps: int
    wall_ns: int
    exact: float
    function_only: float
    lines: tuple[SourceLine, ...]


HostKind = Literal["preprocessing", "python", "logging", "checkpoint"]


class HostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One user line's part of a `HostWork`: sampled time per step, the libraries it was in most, and who called it."""

    file: str
    line: int
    function: str
    phase: Phase
    samples: int
    host_ns: int
    within: str = ""
    called_from: tuple[str, int, str] | None = None


class HostWork(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of one kind per step that runs in no op of torch's: sampled, in the user's lines, outside of fetches.

    ``preprocessing`` makes the model's inputs (it runs before the model in its step, or in a library that decodes,
    tokenizes or reads); ``python`` is all other of the user's own code; ``logging`` and ``checkpoint`` are told by the
    libraries they are in. Garbage collections are part of none. ``lines`` are the hottest function's first, within each
    function by samples and the traced step together; ``samples`` and ``host_ns`` of the lines sum to those of the work.
    """

    kind: HostKind
    samples: int
    host_ns: int
    lines: tuple[HostLine, ...]


class NameTime(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of all events of one name: API calls, copies of one direction.

    ``deviation_ns`` is that of a sample (divided by n - 1), 0 for a single event.
    """

    name: str
    count: int
    total_ns: int
    mean_ns: float
    deviation_ns: float
    min_ns: int
    max_ns: int


KernelClass = Literal[
    "matmul",
    "attention",
    "convolution",
    "elementwise",
    "reduction",
    "layout conversion",
    "copy",
    "communication",
    "optimizer",
    "indexing",
    "other",
]
Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8"]


class KernelTime(NameTime, frozen=True, kw_only=True):
    """One kernel by name. What it does, in which precision and whether on tensor cores is told by the name.

    ``tensor_cores`` is None where the name does not tell. ``grid``, ``block`` and ``registers`` (per thread) are those
    of the longest of a few launches; ``occupancy`` (0 to 1, what the multiprocessors could hold of warps against the
    most) and ``small_grid_share`` (0 to 1, time with fewer blocks than multiprocessors) their means by time. None where
    the trace does not tell.
    """

    kernel_class: KernelClass
    precision: Precision | None = None
    tensor_cores: bool | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    occupancy: float | None = None
    small_grid_share: float | None = None


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of a whole trace, all devices together, longest total first; times add up, also of those at once.

    ``copies`` are copies by direction, and memsets. ``classes_ns`` and ``precisions_ns`` each sum to ``total_ns``.
    ``product_ns`` is the time of matmuls, attention and convolutions, of which ``tensor_core_ns`` ran on tensor cores
    and of ``tensor_core_unknown_ns`` the names do not tell. ``occupancy`` and ``small_grid_share`` are means by time of
    the kernels where they are known.
    """

    total_ns: int
    rows: tuple[KernelTime, ...]
    copies: tuple[NameTime, ...]
    classes_ns: dict[str, int]
    precisions_ns: dict[str, int]
    product_ns: int
    tensor_core_ns: int
    tensor_core_unknown_ns: int
    occupancy: float | None = None
    small_grid_share: float | None = None


class CodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a user's function (where the line is not known the one that begins it) or of a library's."""

    file: str
    line: int
    function: str
    owner: str = "user"


class WrittenAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Attention written out: a product, a softmax over the scores, a product with the values.

    Times are per step, of all ``count`` calls at ``place``; ``products_ns`` and ``products_backward_ns`` are the part
    of the two products, ``lines_ns`` all that its lines do, views and backward included. ``scores_bytes`` is the size
    of one call's matrix of scores, ``inputs_bytes`` of what is multiplied; ``masked`` tells whether an op between the
    products masked scores, ``trained`` whether a backward ran.
    """

    ops: tuple[str, ...]
    count: float
    ns: int
    backward_ns: int
    products_ns: int
    products_backward_ns: int
    lines_ns: int
    masked: bool
    place: CodePlace | None = None
    scores_bytes: int | None = None
    inputs_bytes: int | None = None
    shape: str | None = None

    @property
    def trained(self) -> bool:
        """Whether a backward ran through it."""
        return self.backward_ns > 0


class ElementwiseChain(msgspec.Struct, frozen=True, kw_only=True):
    """Elementwise ops in a row over tensors of one size, each of which reads and writes all of it.

    Times are per step, of all ``count`` runs; ``longest_ns`` is that of the longest forward op and the longest
    backward node, ``functions_ns`` of the ops that compute a function (exp, tanh, a power), with their nodes. Of
    ``bytes`` that the forward ops move in a step, fusing would avoid ``avoided_bytes``: the results in between.
    """

    ops: tuple[str, ...]
    count: float
    ns: int
    backward_ns: int
    longest_ns: int
    functions_ns: int
    bytes: int
    avoided_bytes: int
    shape: str
    dtype: str
    place: CodePlace | None = None


class LayoutCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of tensors to another order of their dimensions in memory, at one place; per step."""

    op: str
    count: float
    ns: int
    bytes: int
    shape: str
    place: CodePlace | None = None


class TypeTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the ops that read tensors of one type, at one place, with the backward of what stands there; per step.

    ``mixed`` tells whether an op there also read a narrower float: where the type comes in.
    """

    dtype: str
    ns: int
    ops: float
    mixed: bool
    place: CodePlace | None = None


class ProductShape(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix products of one shape (``batch``, m, k, n) and type; device time of their kernels per step."""

    op: str
    m: int
    k: int
    n: int
    dtype: str
    count: float
    ns: int
    place: CodePlace | None = None


class BiasBeforeNorm(msgspec.Struct, frozen=True, kw_only=True):
    """Convolutions with a bias whose result a batch norm reads; ``ns`` is device time for the bias alone, per step."""

    count: float
    ns: int
    place: CodePlace | None = None


class OptimizerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer's step: host time of its range, by its usual share of a step, and its ops, per step.

    ``place`` is the line that called it, ``body`` the user's line in it where most of its ops stand: None where the
    optimizer is a library's. ``device_ns`` and ``kernels`` are None without device work.
    """

    name: str
    host_ns: int
    ops: float
    foreach: float
    fused: float
    op_ns: int
    device_ns: int | None = None
    kernels: float | None = None
    place: CodePlace | None = None
    body: CodePlace | None = None


class HostCollective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives that the host waited for, at one place; per step.

    ``waited_ns`` is the time in which the thread that trains had nothing else to do.
    """

    name: str
    count: float
    waited_ns: int
    bytes: int | None = None
    place: CodePlace | None = None


class Patterns(msgspec.Struct, frozen=True, kw_only=True):
    """Ops that belong together, found by their order, names, types and shapes.

    Times are per step of the recording, on the device where ``step_ns`` is None; else on the host, where
    ``step_ns`` is a whole usual step, measured alike: what counts is a time's share of it.
    """

    source: str
    steps: int
    step_ns: int | None
    has_shapes: bool
    attention: tuple[WrittenAttention, ...] = ()
    chains: tuple[ElementwiseChain, ...] = ()
    layout: tuple[LayoutCopies, ...] = ()
    types: tuple[TypeTime, ...] = ()
    products: tuple[ProductShape, ...] = ()
    biased: tuple[BiasBeforeNorm, ...] = ()
    updates: tuple[OptimizerUpdate, ...] = ()
    collectives: tuple[HostCollective, ...] = ()


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


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank beside the others. ``own_ns`` is the mean time per step in phases in which it waits for no other rank.

    ``cpu_ns`` is the processor time of its process per step: more of it is more work, and not a busier machine.
    ``slowest_share`` (0 to 1) is how often it had the most of it. ``size_per_step`` is the size of its data (tokens,
    elements of a batch or samples); ``line`` the user's line that it was in most in its own time.
    """

    rank: int
    own_ns: int
    phases_ns: Phases
    slowest_share: float
    size_per_step: float | None = None
    cpu_ns: int | None = None
    line: LineRow | None = None


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a run over the ``steps`` that were ordinary on all of them; times are means per step.

    ``waiting_ns`` is how much longer the slowest rank of a step works by itself than the mean one. ``follows_size`` is
    the correlation of that with the size of its data, None where sizes are not known or equal.
    """

    steps: int
    wall_ns: int
    waiting_ns: int
    ranks: tuple[RankSummary, ...]
    follows_size: float | None = None


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """What memory gains per step, 0 where its level does not rise steadily, and from how many readings that is."""

    device_bytes_per_step: int | None
    device_readings: int
    process_bytes_per_step: int | None
    process_readings: int
    device_peak_bytes: int | None = None


class CompileCost(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs that torch.compile compiled in all ``steps``, and in the ``late_steps``: the timed ones' second half."""

    graphs: int
    total_ns: int
    steps: int
    late_steps: int
    late_graphs: int
    late_ns: int
    late_wall_ns: int


class BatchTime(msgspec.Struct, frozen=True, kw_only=True):
    """How a step's time, without the wait for data, follows the elements of its batch.

    ``spread`` is the deviation of the sizes over their mean, ``follows`` the rank correlation of size and time.
    ``padded_share`` (0 to 1) is of the batches that were looked into, None where none could be.
    """

    steps: int
    elements_per_step: float
    spread: float
    ns_per_element: float
    follows: float
    padded_share: float | None
    batches_looked_at: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the rules may look at. None = this source has no such part.

    ``trace`` parts come from one rank's newest readable window (or from the file given). ``step`` is the typical step,
    ``every_step`` the mean of all timed ones: with what happens in a few of them only.
    """

    source: str
    step: StepBreakdown | None = None
    every_step: StepBreakdown | None = None
    throughput: Throughput | None = None
    utilization: Utilization | None = None
    trace: TraceFacts | None = None
    trace_step: StepBreakdown | None = None
    ops: Ops | None = None
    ranges: tuple[RangeTime, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    memory_history: tuple[DeviceMemory, ...] = ()
    roofline: tuple[Roofline, ...] = ()
    devices: tuple[DeviceTime, ...] = ()
    launches: tuple[Launches, ...] = ()
    communication: tuple[Communication, ...] = ()
    copies: tuple[CopyTime, ...] = ()
    sync_calls: tuple[SyncCall, ...] = ()
    api_calls: tuple[NameTime, ...] = ()
    os_calls: tuple[NameTime, ...] = ()
    kernels: Kernels | None = None
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
