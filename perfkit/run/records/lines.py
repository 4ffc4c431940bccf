"""lines.json and stacks-N.lines.npz: host time by source line."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import msgspec

from perfkit._location import CodeLine, Location
from perfkit.run.records.needless_work import (
    ConstantOps,
    DiagonalMatrix,
    DroppedRows,
    GatedRows,
    IgnoredTargets,
    MaskedPlaces,
    NumpyDraw,
    ProductOrder,
    RebuiltBuffer,
    RecomputedOutputs,
    RepeatedClosure,
    RepeatedHeads,
    RepeatedOps,
    RepeatedRows,
    RepeatedSamples,
    ResizeOrder,
    SavedViews,
    SlowFft,
    SparseInput,
    SubnormalInputs,
    UnreadResults,
    WeightPenalty,
    WideBroadcast,
)
from perfkit.run.records.steps import Count, Phase
from perfkit.run.records.version import SCHEMA

#: Phases that are known while they run. All other time may turn out to be another phase's once the step goes on: a
#: forward is known when its backward starts.
KNOWN_AT_ONCE: frozenset[Phase] = frozenset({"data", "backward", "optimizer", "validation"})


#: In `LineRow.within` of a worker's line: it was in ``multiprocessing``, which holds what processes share.
SHARED = "multiprocessing"


class LineCaller(Location, frozen=True, kw_only=True):
    """A line from which another one was reached in ``samples`` of its samples."""

    samples: Count


class LineRow(CodeLine, frozen=True, kw_only=True):
    """Host time of one user line, by sampling: ``samples`` stacks whose user line this was, ``host_ns`` per step.

    Attributes:
        worker: None for a line of the training process. For a line that ran in the workers of a DataLoader, the type
            of that loader's dataset; ``phase`` is then "data", and ``host_ns`` is summed over the workers, which run
            in parallel to training: it is not part of the step's wall time.
        within: The samples by the libraries that the line had called, outermost first: ``"json"``,
            ``"torch.serialization > pickle"``; ``""`` is the line's own code with the C functions that it calls itself,
            ``"checkpoint"`` a library's function that saves one. Empty where that was not recorded; in a worker only
            `SHARED` is.
        waiting: Those of ``within`` in which the thread used no processor: it slept, or waited for a lock, a socket, a
            file or another process; estimated from those that were looked at. None: none were.
        waits_for: The expression in which it waited, as it is in the source: ``time.sleep(0.1)``; "" where unknown.
        called_from: The line in another function of the user's from which it was reached most often; None: no other.
        callers: All such lines where there are several, most samples first, at most 8 of them.
        objects: Where a loader fetched a batch, with the samples in which a method of the class ran: libraries' classes
            if no line of the user's ran in that, else the class of the line's own method if a library called it.
    """

    phase: Phase
    samples: Count
    host_ns: Count
    worker: str | None = None
    within: dict[str, Count] = {}
    waiting: dict[str, Count] | None = None
    waits_for: str = ""
    called_from: Location | None = None
    callers: tuple[LineCaller, ...] = ()
    objects: dict[str, Count] = {}

    def by_caller(self) -> list[LineRow]:
        """The row divided by the lines from which it was reached; itself where there is one at most."""
        parts = []
        for one in self.callers:
            ns = round(self.host_ns * one.samples / self.samples)
            parts.append(msgspec.structs.replace(self, samples=one.samples, host_ns=ns, called_from=one.at, callers=()))
        return parts or [self]


class CallPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The call paths of the training thread's samples as a tree, in columns: a node per row, after its parent.

    Attributes:
        frames: The lines of the user's and the functions of libraries on the paths. Of a library ``line`` is None and
            ``file`` its name as in `LineRow.within`.
        frame: The frame of a node, as an index into ``frames``.
        parent: The node that called it; -1: none.
        phase: The phase in which the samples were taken.
        samples: Those whose path ends at this node.
    """

    frames: tuple[Location, ...]
    frame: tuple[int, ...]
    parent: tuple[int, ...]
    phase: tuple[Phase, ...]
    samples: tuple[Count, ...]


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """The worker processes of the loaders over one type of dataset, summed over ``processes`` of them.

    ``alive_ns`` is how long they lived while sampled, ``busy_ns`` the part in which they fetched or collated
    (otherwise they waited for an index, or for room in the queue), ``cpu_ns`` the processor time they used.
    Busy without using the processor is waiting for a disk or a network. ``sampling_ns`` is the part of ``cpu_ns``
    that perfkit's sampler took.
    """

    dataset: str
    processes: Count
    samples: Count
    alive_ns: Count
    busy_ns: Count
    cpu_ns: Count
    sampling_ns: Count = 0


class ModuleCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one ``torch.nn.Module`` object from one user line in the step that is traced by line.

    Attributes:
        host_ns: Time of the calls, forward only.
        again: Calls with the very input that this module had before in the step, with nothing in between that could
            change the answer or make another backward need it: see `perfkit.record.samplers.module_calls`.
            ``again_ns`` is their time, ``again_backward`` whether a backward followed them; ``again_at`` is the line
            that led to them and not to the first call, None where they come from another line than that call.
        same: Calls with an input that the module had before from the same lines, without gradients and without an
            update: passes whose dropout differs, or an answer that is computed anew. ``same_ns`` is their time, and
            ``same_most`` the most of them with one input.
        samples: The samples of the input of each call (the length of a tensor of at least two dimensions); None where
            it has none, or where they differ.
        sliced: Whether all calls had inputs of the same shapes that were consecutive parts of the same tensors, as the
            samples of a batch are, with no backward and no fetch between the first and the last.
        items: The items of a collection that the loop around the calls goes through, one sample per call, where no
            answer flows into a later call; None: no such loop is known.
        growing: Calls with the samples of the call before and one position more, as of a text that is written word by
            word. ``growing_ns`` is their time without that of one position each, if time follows the length.
        padded_ns: The part of ``host_ns`` that would not be without the padding that all rows of an input have at their
            end, if time follows their length; None where no input had a length (`padding_of_longest`) on a CPU.
        builds_graph: Whether gradients were enabled in the first call.
        rolls_out: Whether the calls are a rollout that one backward goes through (`perfkit.record.samplers.rollouts`).
        drops_value: Whether it is a metric of torchmetrics, called in a statement that keeps nothing of its value.
        number: Equal for calls of the same object in the traced step; None: not recorded.
        draws: Whether random numbers were drawn in one of the calls, or that is not known.
        passes_on: Whether something that needed a gradient went into a call: an input, or what else the first one read.
        reached: Whether a backward of the step reached what the first call returned; None: not known.
    """

    module: str
    calls: Count
    host_ns: Count
    again: Count = 0
    again_ns: Count = 0
    again_backward: bool = False
    again_at: Location | None = None
    same: Count = 0
    same_most: Count = 0
    same_ns: Count = 0
    samples: Count | None = None
    sliced: bool = False
    items: Count | None = None
    growing: Count = 0
    growing_ns: Count = 0
    padded_ns: Count | None = None
    builds_graph: bool = True
    rolls_out: bool = False
    drops_value: bool = False
    number: int | None = None
    draws: bool = False
    passes_on: bool = False
    reached: bool | None = None


class ConstantCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a user's function from one line whose result is the same in each step; ``host_ns`` is their time."""

    called: Location
    calls: Count
    host_ns: Count


class GradientCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of ``torch.autograd.grad`` (``is_grad``) or of a backward from one user line, in the step traced by line.

    ``again`` are those with the outputs of an earlier call, differentiated along the same vector: for other inputs.
    ``again_ns`` is their part of ``host_ns``; ``builds_graph`` is whether gradients can be differentiated again.
    """

    calls: Count
    host_ns: Count
    again: Count = 0
    again_ns: Count = 0
    builds_graph: bool = False
    is_grad: bool = False


class TracedLine(CodeLine, frozen=True, kw_only=True):
    """One user line in the step that is traced by line.

    Attributes:
        runs: How often the line ran in that step; 0 for a line that began before it, such as the call of a Trainer.
        host_ns: Time in the line with all that it called, in a step that tracing made slower than others. For a
            line that began before the step: of the modules and of the user's functions that it called.
        loop_line: The ``for`` or ``while`` statement around the line, if any. ``loop_carries`` is whether one of its
            iterations needs the result of the one before, as its source shows.
        before_model: Whether it first ran before any module was called in that step; None: none was called.
        modules: The modules that it called.
        constants: The functions that it called whose result does not change.
        callers: The first few of the user's lines from which the line's function was called in that step.
        gradients: The gradients that it computed; None: none.
    """

    phase: Phase
    runs: Count
    host_ns: Count
    loop_line: int | None = None
    loop_carries: bool = False
    before_model: bool | None = None
    modules: tuple[ModuleCalls, ...] = ()
    callers: tuple[Location, ...] = ()
    constants: tuple[ConstantCalls, ...] = ()
    gradients: GradientCalls | None = None


class RareStep(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one of the steps that come rarely and take long; ``step`` is its number.

    ``complete`` is whether it was traced to its end: of a long one the first 300,000 lines are.
    """

    step: Count
    lines: tuple[TracedLine, ...] = ()
    complete: bool = True


class StepInterval(CodeLine, frozen=True, kw_only=True):
    """A sampled line, or one that leads to it, which runs in every N-th step, and the line that sets N."""

    set_at: Location


class HeldLock(CodeLine, frozen=True, kw_only=True):
    """A sampled line that waits for a lock, and the other ``with`` on a lock of that name that calls most in it."""

    held_at: Location


class RegrownInputs(CodeLine, frozen=True, kw_only=True):
    """Calls of a model from one line, each with one position more than the call before it.

    ``calls`` is their number in the whole run, ``host_ns`` what the positions known before took, per step of the run.
    """

    phase: Phase
    module: str
    calls: Count
    host_ns: Count


class Collected(CodeLine, frozen=True, kw_only=True):
    """Full garbage collections that began in one line, in the whole run: their number and their total time."""

    count: Count
    total_ns: Count


class Filling(CodeLine, frozen=True, kw_only=True):
    """A sampled line, or one that calls its function, and the line that adds to what it reads.

    With ``is_hook`` the function is a hook, and ``filled`` the line that registers it.
    """

    filled: Location
    is_hook: bool = False


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """lines.json. ``period_ns`` is the time between two samples, ``steps`` the number of sampled steps.

    ``traced`` has the lines of one ordinary step, ``rare_step`` those of one that comes rarely, where there was one.
    ``workers`` has one entry per type of dataset that loader workers read; ``collected`` one per line in which a full
    garbage collection began, ``constant_ops`` one per line below which ops compute the same in each step,
    ``repeated_ops`` at most one, for a line below which they compute the same several times in a step,
    ``unread_results`` one per line below which ops compute what nothing reads, ``ignored_targets`` one per line and
    number of classes whose loss ignores targets, ``subnormal_inputs`` one per line and kind of product,
    ``wide_broadcasts`` one per line, op and shapes, ``dropped_rows`` one per line that picks from rows, ``gated_rows``
    one per line that multiplies rows by factors some of which are zero, ``rebuilt_buffers`` one per line that copies a
    buffer to add to it, ``sparse_inputs`` one per line that multiplies by a matrix of zeros and its shape,
    ``diagonal_matrices`` one per line that factors such matrices and their size, ``slow_ffts`` one per line and length,
    ``repeated_heads`` one per line whose attention reads copies of keys, ``repeated_rows`` one per line and sizes of a
    layer that gets rows several times, ``repeated_samples`` one per copies that convolutions get, ``product_orders``
    one per line and sizes of its product, ``resize_orders`` one per line and sizes of a resized map or of what a layer
    makes before an average, ``saved_views`` one per line that saves parts of a memory and with them all of it,
    ``masked_places`` one per number of places that attention masks, ``weight_penalties`` one per line that sums up
    squares of parameters, ``repeated_closures`` at most one, for the steps of an L-BFGS that begin where the step
    before has evaluated, ``regrown_inputs`` one per line, phase and module, ``recomputed_outputs`` one per frozen
    module and line that gives it the same inputs again. ``paths`` has the samples of ``rows`` without those in
    workers; None: none, or recorded before version 0.2.
    ``training_inputs`` are lines whose results training reads: see `perfkit.record.samplers.training_inputs`.
    ``intervals`` has one entry per hot line that runs in every N-th step, ``host_reads`` one per hot line outside of
    training that reads the values of tensors, ``numpy_draws`` one per hot line that draws with numpy's ``choice`` in a
    way that costs more than what it draws, ``held_locks`` one per line that waits for a lock. ``makers`` has the one
    line that makes an object of a class of `LineRow.objects` in whose methods most of a fetch passes.
    """

    AVAILABLE_FROM: ClassVar[str] = "source lines of a run: perfkit run, or perfkit.profile"

    schema: int = SCHEMA
    period_ns: Count
    steps: Count
    rows: tuple[LineRow, ...] = ()
    traced: tuple[TracedLine, ...] = ()
    rare_step: RareStep | None = None
    workers: tuple[Workers, ...] = ()
    collected: tuple[Collected, ...] = ()
    constant_ops: tuple[ConstantOps, ...] = ()
    repeated_ops: tuple[RepeatedOps, ...] = ()
    unread_results: tuple[UnreadResults, ...] = ()
    ignored_targets: tuple[IgnoredTargets, ...] = ()
    subnormal_inputs: tuple[SubnormalInputs, ...] = ()
    wide_broadcasts: tuple[WideBroadcast, ...] = ()
    dropped_rows: tuple[DroppedRows, ...] = ()
    gated_rows: tuple[GatedRows, ...] = ()
    rebuilt_buffers: tuple[RebuiltBuffer, ...] = ()
    sparse_inputs: tuple[SparseInput, ...] = ()
    diagonal_matrices: tuple[DiagonalMatrix, ...] = ()
    slow_ffts: tuple[SlowFft, ...] = ()
    repeated_heads: tuple[RepeatedHeads, ...] = ()
    repeated_rows: tuple[RepeatedRows, ...] = ()
    repeated_samples: tuple[RepeatedSamples, ...] = ()
    saved_views: tuple[SavedViews, ...] = ()
    masked_places: tuple[MaskedPlaces, ...] = ()
    product_orders: tuple[ProductOrder, ...] = ()
    resize_orders: tuple[ResizeOrder, ...] = ()
    weight_penalties: tuple[WeightPenalty, ...] = ()
    repeated_closures: tuple[RepeatedClosure, ...] = ()
    regrown_inputs: tuple[RegrownInputs, ...] = ()
    recomputed_outputs: tuple[RecomputedOutputs, ...] = ()
    paths: CallPaths | None = None
    fillings: tuple[Filling, ...] = ()
    training_inputs: tuple[Location, ...] = ()
    intervals: tuple[StepInterval, ...] = ()
    host_reads: tuple[Location, ...] = ()
    numpy_draws: tuple[NumpyDraw, ...] = ()
    held_locks: tuple[HeldLock, ...] = ()
    makers: dict[str, Location] = {}

    def in_phase(self, phase: Phase) -> list[LineRow]:
        """The training process's rows that may belong to a phase of the step clock, hottest first."""

        def alike(other: Phase) -> bool:
            return other == phase or not {other, phase} & KNOWN_AT_ONCE

        own = [row for row in self.rows if row.worker is None and alike(row.phase)]
        return sorted(own, key=lambda row: -row.samples)


class UserCode(Location, frozen=True, kw_only=True, rename={"line": "first_line"}):
    """One function of the user's, at its first line. ``frame_file`` and ``name`` are what torch's frames call it."""

    line: int
    function: str
    frame_file: str
    name: str


class LineTimes(NamedTuple):
    """When a thread reached which line of the user's, in a step recorded with stacks: stacks-N.lines.npz.

    The columns belong together, one row per change of line: ``time_ns`` (int64, unix time, rising), ``code`` (an index
    into ``codes``), ``line`` and ``depth`` (open calls of the user's functions, this one included; 0: none, the line
    was left).

    Attributes:
        thread: The thread's number, as the system counts them.
        codes: The user's functions that ran.
        files: All files of the user's: their name in torch's Python frames -> their path.
        complete: Whether the thread was followed to the end of the step; not where there were too many lines.
    """

    thread: int
    codes: tuple[UserCode, ...]
    files: dict[str, str]
    time_ns: Any
    code: Any
    line: Any
    depth: Any
    complete: bool
