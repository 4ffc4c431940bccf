"""What a run folder holds, as frozen Structs. Times are integer nanoseconds; not measured = None, never zero."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from perfkit._location import Location

#: Version of the run folder. 1: places as arrays; 2: as `Location`. `perfkit.run.older_folders` converts what is older;
#: a reader refuses what is newer.
SCHEMA = 2

#: What a step did. Measures of time are of training where there is any.
Mode = Literal["train", "validation", "test", "predict"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: The phases of a step: a closed list, exclusive, in the order they are shown.
Phase = Literal[
    "data",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "validation",
    "callbacks",
    "logging",
    "checkpoint",
    "other",
]
PHASES: tuple[Phase, ...] = get_args(Phase)


class Phases(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Time per phase in ns; None = this loop cannot tell; the others sum to the step's wall time."""

    data: int | None = None
    transfer: int | None = None
    forward: int | None = None
    backward: int | None = None
    optimizer: int | None = None
    validation: int | None = None
    callbacks: int | None = None
    logging: int | None = None
    checkpoint: int | None = None
    other: int | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One row of steps.jsonl: one training step, or ``steps`` merged ones (times and counts are then sums).

    What has its default value is left out of the row: a row of a plain loop is half as long.

    ``window`` is the open window's index or None; ``extra`` marks a step after that window in which lines, operations
    or stacks were recorded; ``dry`` the steps of the dry run. Measures of time leave out all of them.
    ``memory_bytes`` is device memory allocated at the end of the step, ``memory_peak_bytes`` the allocator's running
    peak where it rose, ``rss_bytes`` this process's resident memory; ``alloc_retries`` and ``device_allocs``
    (cudaMalloc calls) are of the 50 steps that end with this one. All of these are read every few steps and are None
    in between. ``compile_ns`` is the time in torch.compile, ``batch_elements`` the size of the first tensor of the
    batches that a DataLoader gave. ``loss`` is of this step, where the program says it; merged rows have the first's.
    """

    step: int
    steps: int = 1
    mode: Mode = "train"
    start_ns: int
    wall_ns: int
    phases_ns: Phases
    device_phases_ns: Phases | None = None
    device_busy_ns: int | None = None
    samples: int | None = None
    tokens: int | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    rss_bytes: int | None = None
    alloc_retries: int | None = None
    device_allocs: int | None = None
    syncs: int | None = None
    recompiles: int | None = None
    compile_ns: int | None = None
    batch_elements: int | None = None
    loss: float | None = None
    gc_ns: int | None = None
    window: int | None = None
    extra: bool = False
    dry: bool = False


SyncKind = Literal["read", "copy-h2d", "copy-d2h", "shape", "print", "explicit", "collective", "other"]


class SyncEvent(Location, frozen=True, kw_only=True):
    """The syncs of one line: a place where the host waits for the device.

    ``count`` is how often the line synced as a user would count it (one ``print`` = one), ``raw_syncs``
    how many device waits that made; ``per_step`` is count over the steps observed and ``in_steps`` in how many of
    them it synced (None where no step was seen). ``blocked_ns`` is None where it has no price: always in a dry run.
    ``via`` is ``file:line`` inside a library. ``certainty`` is "may" where it depends on what cannot be known,
    with the ``reason``.
    """

    kind: SyncKind
    op: str
    line: int
    function: str
    count: int
    raw_syncs: int
    per_step: float | None = None
    in_steps: int | None = None
    blocked_ns: int | None = None
    via: str | None = None
    thread: str = "MainThread"
    certainty: Literal["certain", "may"] = "certain"
    reason: str = ""
    advice: str = ""


class Syncs(msgspec.Struct, frozen=True, kw_only=True):
    """syncs.json: what `detect_syncs` saw.

    ``observed`` is False where no tensor was ever on the (simulated) device: then nothing was checked.
    """

    schema: int = SCHEMA
    mode: Literal["cuda", "dry"]
    observed: bool
    steps: int | None
    events: tuple[SyncEvent, ...]
    note: str | None = None


class LineRow(Location, frozen=True, kw_only=True):
    """Host time of one user line, by sampling: ``samples`` stacks whose user line this was, ``host_ns`` per step.

    ``worker`` is None for a line of the training process. For a line that ran in the workers of a DataLoader it is
    the type of that loader's dataset, ``phase`` is "data", and ``host_ns`` is summed over the workers, which
    work beside training: it is not part of the step's wall time.

    ``within`` has the samples by the libraries that the line had called, outermost first: ``"json"``,
    ``"torch.serialization > pickle"``, and ``""`` for the line's own code with the C functions that it called itself.
    ``"checkpoint"`` stands for a library's function that saves one. ``called_from`` is the line of another function of
    the user's from which it was reached most often, None where there is no other.
    It is empty where that was not recorded.
    """

    line: int
    function: str
    phase: Phase
    samples: int
    host_ns: int
    worker: str | None = None
    within: dict[str, int] = {}
    called_from: Location | None = None


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of the loaders over one type of dataset did, summed over ``processes`` worker processes.

    ``alive_ns`` is how long they lived while sampled, ``busy_ns`` the part in which they fetched or collated
    (the rest they waited for an index, or for room in the queue), ``cpu_ns`` the processor time they used.
    Busy without using the processor is waiting for a disk or a network. ``sampling_ns`` is the part of ``cpu_ns``
    that perfkit's sampler took.
    """

    dataset: str
    processes: int
    samples: int
    alive_ns: int
    busy_ns: int
    cpu_ns: int
    sampling_ns: int = 0


class ModuleCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one ``torch.nn.Module`` object from one user line in the step that is traced by line.

    ``host_ns`` is their time, forward only. ``again`` of them had the very input that this module was given before in
    the step, with nothing in between that could make the answer differ or another backward need it: see
    `perfkit.record.samplers.module_calls`. ``again_ns`` is their time, ``again_backward`` whether a backward came after
    them.
    ``sliced`` is whether all had inputs of the same shapes that were one part after the other of the same tensors, as
    the samples of a batch are, with no backward and no fetch between the first and the last.
    """

    module: str
    calls: int
    host_ns: int
    again: int = 0
    again_ns: int = 0
    again_backward: bool = False
    sliced: bool = False


class TracedLine(Location, frozen=True, kw_only=True):
    """One user line in the step that is traced by line, after a window.

    ``runs`` is how often the line ran in that step; ``host_ns`` the time in it with all that it called, in a
    step that tracing made slower than others. ``loop_line`` is the ``for`` or ``while`` statement that the line
    stands in, if any. ``before_model`` is whether it first ran before any module was called in that step, None where
    none was. ``modules`` are the modules that it called. ``callers`` are the lines of the
    user's from which the line's function was called in that step, the first few.
    """

    line: int
    function: str
    phase: Phase
    runs: int
    host_ns: int
    loop_line: int | None = None
    before_model: bool | None = None
    modules: tuple[ModuleCalls, ...] = ()
    callers: tuple[Location, ...] = ()


class Collected(Location, frozen=True, kw_only=True):
    """Full garbage collections that began in one line, in the whole run: how many, and how long they took in all."""

    line: int
    function: str
    count: int
    total_ns: int


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """lines.json: what was learnt per source line. ``period_ns`` is the sampler's, ``steps`` the steps it saw.

    ``workers`` has one entry per type of dataset that loader workers read; ``collected`` one per line in which the
    garbage collector looked through all objects.
    """

    schema: int = SCHEMA
    period_ns: int
    steps: int
    rows: tuple[LineRow, ...] = ()
    traced: tuple[TracedLine, ...] = ()
    workers: tuple[Workers, ...] = ()
    collected: tuple[Collected, ...] = ()


class UserCode(Location, frozen=True, kw_only=True, rename={"line": "first_line"}):
    """One function of the user's, at its first line. ``frame_file`` and ``name`` are what torch's frames call it."""

    line: int
    function: str
    frame_file: str
    name: str


class RangeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One time a range ran, in a window; ``end_ns`` is None where it was open still when the window ended.

    ``depth`` is how many ranges were open in its thread when it began. Times are of the run's clock.
    """

    name: str
    category: str
    domain: str
    thread: str
    start_ns: int
    end_ns: int | None
    depth: int


class RangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One range of ranges.npz: how often it ran and how long. ``hist[i]`` counts durations in [2^i, 2^(i+1)) ns.

    ``device_ns`` is the time the device took for ``device_count`` of them, both None where it was not measured.
    """

    name: str
    category: str
    domain: str
    thread: str
    count: int
    total_ns: int
    self_ns: int
    min_ns: int
    max_ns: int
    hist: tuple[int, ...]
    device_count: int | None = None
    device_ns: int | None = None


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a DataLoader that the loop was seen to read from."""

    dataset: str
    batch_size: int | None
    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    role: Mode = "train"


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One window: the steps [first_step, last_step] recorded into ``file`` (relative to the rank's folder).

    ``reason`` is why it opened: "schedule", or "trigger: " and what happened; None in runs older than triggers.
    """

    index: int
    first_step: int
    last_step: int
    file: str | None
    complete: bool
    problem: str | None = None
    reason: str | None = None


class StepFlops(msgspec.Struct, frozen=True, kw_only=True):
    """Floating point operations of one step on one device, counted once.

    ``by_precision`` is by what the units computed in: "bfloat16", "float16", "float32", "tf32", "float64",
    "float8". ``recomputed`` is the part that ran again in the backward (activation checkpointing); it is
    contained. ``device`` is the device's name, None on a CPU. Where ``problem`` is not None the count would
    be wrong, and ``by_precision`` is empty.
    """

    step: int
    by_precision: dict[str, int] = {}
    recomputed: int = 0
    device: str | None = None
    problem: str | None = None


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """One function that torch.compile compiled, as often as it did: ``count`` times, ``recompiles`` of them again.

    ``called_from`` is the user's line that called it, None where torch did not record one; ``reason`` is the guard that
    failed last.
    """

    compiled: str
    called_from: Location | None
    count: int
    recompiles: int
    total_ns: int
    reason: str | None = None


class GraphBreak(Location, frozen=True, kw_only=True):
    """A line of the user's at which torch.compile broke a graph: ``count`` graphs ended there."""

    reason: str
    line: int
    function: str
    count: int


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer that was seen to step.

    ``tensors`` and ``elements`` are of all its parameters; ``foreach`` and ``fused`` are as set, None = torch decides.
    ``keeps_gradients`` is whether gradients were the same tensors after `zero_grad` as before: filled with zeros, not
    set to None; None where that could not be seen.
    """

    kind: str
    tensors: int
    elements: int
    dtypes: tuple[str, ...]
    foreach: bool | None = None
    fused: bool | None = None
    keeps_gradients: bool | None = None


class KeptTensors(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that were alive between two steps, and grew in number between two looks at them.

    ``grown`` of them came in ``steps`` steps, with ``grown_bytes`` of their own. ``graph`` is whether they carry an
    autograd graph, which keeps what the backward would need; ``nodes_grown`` how many nodes the largest graph gained.
    ``name`` is what holds them, where that could be found, with the lines that put something there.
    """

    steps: int
    grown: int
    grown_bytes: int
    graph: bool
    nodes_grown: int = 0
    name: str | None = None
    places: tuple[Location, ...] = ()


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the batches looked at was padding: ``padded`` of ``elements``, in ``batches`` batches.

    Counted in batches of whole numbers, (samples, length), whose rows end in the same number.
    """

    batches: int
    elements: int
    padded: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """failure.json: what is known of the exception that ended a run, where its trigger was on.

    ``step`` is the one in which it was raised, ``phase`` where that was, None where it cannot be told. A step that was
    not closed has no row: ``in_step_ns`` is how long it had run, else None. ``lines`` are the user's, outermost first,
    the last one where the error came from; ``window`` the window that was open, and is saved as far as it came.
    """

    schema: int = SCHEMA
    error: str
    out_of_memory: bool
    step: int
    phase: Phase | None
    in_step_ns: int | None
    lines: tuple[Location, ...] = ()
    window: int | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    rss_bytes: int | None = None


class ClockPair(msgspec.Struct, frozen=True):
    """The same instant on the run's clock and as unix time, both in ns."""

    perf_ns: int
    unix_ns: int


class Spread(msgspec.Struct, frozen=True):
    """The smallest, middle and largest of the values that were read."""

    min: float
    median: float
    max: float


class NodeSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPU at one time, as NVML tells it; None = it cannot. ``step`` is how many steps the rank had begun.

    ``utilization`` is the percentage of the second before in which a kernel ran. ``reasons`` are NVML's words for why
    clocks are below their maximum, here and in the samples merged into this one. ``others`` are other processes that
    have memory on the GPU, ``others_utilization`` the percentage of its multiprocessors that they used.
    """

    at_ns: int
    step: int
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    utilization: int | None = None
    reasons: tuple[str, ...] | None = None
    others: int | None = None
    others_bytes: int | None = None
    others_utilization: int | None = None


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPU of a rank did beside training, by NVML: each value's spread, and up to 100 samples over the run.

    ``reasons`` counts the samples, of ``taken``, in which each reason for lower clocks was active; ``uuid`` is the
    device's own name, whatever CUDA_VISIBLE_DEVICES calls it. ``problem`` is why nothing more was read.
    """

    uuid: str
    name: str | None = None
    taken: int = 0
    max_sm_mhz: int | None = None
    max_memory_mhz: int | None = None
    power_limit_w: float | None = None
    sm_mhz: Spread | None = None
    memory_mhz: Spread | None = None
    power_w: Spread | None = None
    temperature_c: Spread | None = None
    utilization: Spread | None = None
    reasons: dict[str, int] = {}
    samples: tuple[NodeSample, ...] = ()
    problem: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """run.json, written by rank 0."""

    schema: int = SCHEMA
    launch_id: str
    command: tuple[str, ...]
    folder: str
    world_size: int
    schedule: dict[str, float | None] | None = None
    options: dict[str, str] = {}
    total_steps: int | None = None


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """rank.json, one per rank. ``ending`` is None while the run goes on.

    ``overhead_ns`` is perfkit's own time in and between the steps, summed, and ``overhead_bytes`` the most memory that
    its buffers, tables and rows were seen to hold; ``errors`` are perfkit's own, each told once;
    ``graph_breaks`` says why torch.compile broke graphs, and how often. ``calls`` are the user's lines that call a
    function which changes a setting, by its name; ``evaluated_with_grad`` is the line of an evaluation whose result
    carried a graph. ``cpu_ns_per_step`` is the processor time of the process, all its threads, in an ordinary step.
    """

    schema: int = SCHEMA
    rank: int
    launch_id: str
    host: str
    pid: int
    start_ns: int
    end_ns: int | None = None
    ending: str | None = None
    versions: dict[str, str] = {}
    devices: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    loaders: tuple[Loader, ...] = ()
    git_commit: str | None = None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: int = 0
    overhead_ns: int | None = None
    overhead_bytes: int | None = None
    cpu_ns_per_step: int | None = None
    graph_breaks: dict[str, int] = {}
    break_lines: tuple[GraphBreak, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    calls: dict[str, tuple[Location, ...]] = {}
    evaluated_with_grad: Location | None = None
    kept: tuple[KeptTensors, ...] = ()
    padding: Padding | None = None
    flops: StepFlops | None = None
    node: NodeHealth | None = None
    clock_pairs: tuple[ClockPair, ...] = ()
    windows: tuple[Window, ...] = ()
