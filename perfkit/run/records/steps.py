"""steps.jsonl: one row per step, or per group of merged steps."""

from __future__ import annotations

import operator
from typing import Annotated, Literal, get_args

import msgspec

from perfkit._versioned_json import LARGEST

#: What a step does. Times are those of the training steps where the run has any.
Mode = Literal["train", "validation", "test", "predict"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: The phases of a step: a closed list, exclusive, in the order in which reports show them.
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

#: What a step is used for. Only "timed" steps are ordinary; recording slows all others, so measures of time skip them.
#:
#: - "warmup": a window is open and does not record yet; "window": it records;
#: - "lines": source lines are recorded: after a window with their stacks (and the pause before that), or by tracing;
#: - "ops": floating point operations are counted;
#: - "memory": allocations are recorded;
#: - "dry": the dry run of sync detection.
StepKind = Literal["timed", "warmup", "window", "lines", "ops", "memory", "dry"]

#: What the steps of a run were counted by: marks of the program or its framework; fetches of a loader; updates of an
#: optimizer; backwards, where the program updates its weights by itself; calls of a model; rounds of a loop; "program":
#: no step was seen, and the whole program counts as one.
BoundaryKind = Literal["marked", "loader", "optimizer", "backward", "module", "round", "program"]

#: What a count, a time or an amount can be. A file that claims anything else was not written by perfkit, or is damaged.
NotNegative = msgspec.Meta(ge=0, le=LARGEST)
Count = Annotated[int, NotNegative]

#: How `perfkit.run.merging` joins a field of two rows: the sum, the larger or the smaller value. A field without one of
#: these keeps the first row's value.
Amount = Annotated[int, operator.add, NotNegative]
Maximum = Annotated[int, max, NotNegative]
Minimum = Annotated[int, min, NotNegative]


class Phases(msgspec.Struct, frozen=True, gc=False):
    """Time per phase in ns, which sum to the step's wall time; None: this loop does not show the phase."""

    data: Amount | None = None
    transfer: Amount | None = None
    forward: Amount | None = None
    backward: Amount | None = None
    optimizer: Amount | None = None
    validation: Amount | None = None
    callbacks: Amount | None = None
    logging: Amount | None = None
    checkpoint: Amount | None = None
    other: Amount | None = None


class Waits(Phases, frozen=True, gc=False, omit_defaults=True):
    """Time per phase in ns in which the thread that trains was blocked in collectives; None: it never was in there."""


def total_ns(phases: Phases | None) -> int | None:
    """The time of all phases together; None of None."""
    return sum(getattr(phases, name) or 0 for name in PHASES) if phases is not None else None


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One row of steps.jsonl: one step, or ``steps`` merged ones, with the sums of their times and counts.

    Fields with their default value are left out of the file: the row of a plain loop is half as long.

    Attributes:
        kind: What the step is used for; ``window`` is the index of the window that it belongs to, None: to none.
        thread_ns: Processor time of the thread that trains, which other programs lengthen much less than the step: of
            the steps between two readings, 1 ms or one step apart, their mean. None: not known.
        memory_bytes: Device memory allocated at the end of the step; ``memory_peak_bytes``: the allocator's running
            peak, in the steps in which it rose; ``rss_bytes``: this process's resident memory.
        alloc_retries, device_allocs: Retries and cudaMalloc calls in the 50 steps that end with this one. Like the
            memory, they are read every few steps and are None in between.
        compile_ns: Time in torch.compile.
        batch_elements: Elements in the first tensor of the batches that a DataLoader returned.
        model_calls, input_elements: Where no DataLoader returned a batch, the calls of modules from outside of any
            other, and the elements in the first tensor of each.
        loss: As the program logs it; a merged row has the first step's.
        waited_phases_ns: The parts of ``phases_ns`` in which the host was blocked in collectives: in transfer, and in
            waiting for the ranks that came later. None where collectives do not block the host (NCCL's run on a device)
            and in a program of one process.
    """

    step: Count
    steps: Annotated[int, operator.add, msgspec.Meta(ge=1, le=LARGEST)] = 1
    mode: Mode = "train"
    kind: StepKind = "timed"
    window: int | None = None
    start_ns: Count
    wall_ns: Amount
    thread_ns: Amount | None = None
    phases_ns: Phases
    device_phases_ns: Phases | None = None
    device_busy_ns: Amount | None = None
    samples: Amount | None = None
    tokens: Amount | None = None
    memory_bytes: Maximum | None = None
    memory_peak_bytes: Maximum | None = None
    rss_bytes: Maximum | None = None
    alloc_retries: Amount | None = None
    device_allocs: Amount | None = None
    syncs: Amount | None = None
    recompiles: Amount | None = None
    compile_ns: Amount | None = None
    batch_elements: Amount | None = None
    model_calls: Amount | None = None
    input_elements: Amount | None = None
    loss: float | None = None
    gc_ns: Amount | None = None
    waited_phases_ns: Waits | None = None

    @property
    def waited_ns(self) -> int | None:
        """Time in which the host was blocked in collectives, over all phases; None: not measured."""
        return total_ns(self.waited_phases_ns)
