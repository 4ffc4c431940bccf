"""What a run shows of its program: loaders, optimizers, compiled functions, padding. Parts of rank.json."""

from __future__ import annotations

import msgspec

from perfkit._location import CodeLine, Location
from perfkit.run.records.steps import BoundaryKind, Count, Mode


class ComparedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of later passes over a dataset, ``compared`` with the same ones of the first pass.

    ``equal`` of them were equal, by some elements of each. Samples that are nearly all alike are not compared.
    """

    compared: Count
    equal: Count

    @property
    def share(self) -> float:
        """The share that was equal, 0 to 1."""
        return self.equal / self.compared if self.compared else 0.0


class DatasetTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a `datasets.Dataset`, of Hugging Face's library.

    ``format`` is what it hands out: ``python`` (lists, where none was set), ``torch``, ``numpy`` ... ``columns`` is how
    many of them it hands out, ``numbers`` how many numbers its first row has in all of them; None: not known, or in
    lists of lists.
    """

    format: str
    columns: Count
    numbers: Count | None = None


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a DataLoader that the loop read from.

    ``created_at`` is the user's line that made it, with the call on that line as its function. Where a library made it,
    the owner is that library, and the line is the user's that called it. None where neither is known. ``batches`` is
    how many one pass over it has, None where the dataset has no length; ``iterators`` is how many passes were begun.
    ``compared_samples``: None where it is not known whether each pass gives the same samples.
    ``table``: None where the dataset is no `datasets.Dataset`. ``collate_fn`` is the module and the name of the
    function that makes batches, or of its object's class.
    """

    dataset: str
    batch_size: Count | None
    num_workers: Count
    pin_memory: bool
    prefetch_factor: Count | None
    persistent_workers: bool
    role: Mode = "train"
    created_at: Location | None = None
    batches: Count | None = None
    iterators: Count | None = None
    compared_samples: ComparedSamples | None = None
    table: DatasetTable | None = None
    collate_fn: str | None = None


class StepBoundary(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of a run were counted by; ``module`` is the class of the model whose calls are steps.

    ``training`` is whether that model was in training mode, ``called_at`` the line that called it, or the loop whose
    rounds are steps. ``sliced`` is the share (0 to 1) of its first calls whose inputs were each the next part of the
    tensors of the call before; None: not known. ``items`` are those of a collection that a loop goes through with one
    sample of one shape per call; None: none.
    """

    by: BoundaryKind
    module: str | None = None
    training: bool | None = None
    called_at: Location | None = None
    sliced: float | None = None
    items: Count | None = None


class ReducerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What DistributedDataParallel measured by itself: means over the backwards that it samples, in ns.

    It samples the first ten, and every hundredth (torch's ``kDDPRuntimeLoggingSampleRate``), on a GPU by its events.

    Attributes:
        backward_ns: From the end of the forward until the last gradient was ready.
        communication_ns: From the first bucket's all-reduce until the last one's end.
        overlap_ns: The part of the communication before the last gradient was ready.
    """

    backward_ns: Count
    communication_ns: Count
    overlap_ns: Count

    @property
    def exposed_ns(self) -> int:
        """The communication that the backward waits for: transfer, and waiting for other ranks."""
        return max(0, self.communication_ns - self.overlap_ns)


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that train together: torch.distributed's default group.

    Attributes:
        backend: What exchanges their tensors: ``gloo``, ``nccl``, or ``cpu:gloo,cuda:nccl``.
        size: The number of processes.
        reducer: What DistributedDataParallel measured; None where it does not train, or has not yet.
    """

    backend: str
    size: Count
    reducer: ReducerTimes | None = None


class WholeProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program in which no step was seen, from the start of the recording on.

    Attributes:
        wall_ns: Its time until its end, or until now; ``cpu_ns``: the processor time of the process, all its threads.
        import_ns: The part in which it imported modules, by sampling; None where lines were not sampled. The rows of
            `Lines`, which then are of the whole program, leave it out.
    """

    wall_ns: Count
    cpu_ns: Count
    import_ns: Count | None = None


class StepFlops(msgspec.Struct, frozen=True, kw_only=True):
    """Floating point operations of one step on one device, counted once.

    Attributes:
        by_precision: By what the units computed in: "bfloat16", "float16", "float32", "tf32", "float64", "float8".
        recomputed: The part that ran again in the backward (activation checkpointing); ``by_precision`` includes it.
        device: The device's name, None on a CPU.
        problem: Why the count would be wrong; ``by_precision`` is then empty.
    """

    step: Count
    by_precision: dict[str, Count] = {}
    recomputed: Count = 0
    device: str | None = None
    problem: str | None = None


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """One function that torch.compile compiled ``count`` times; ``recompiles`` of these replaced an earlier graph.

    ``called_from`` is the user's line that called it, None where torch did not record one, ``compiled_at`` the one that
    called torch.compile; ``reason`` is the guard that failed last, ``guarded_at`` the line that made it.
    """

    compiled: str
    called_from: Location | None
    count: Count
    recompiles: Count
    total_ns: Count
    reason: str | None = None
    compiled_at: Location | None = None
    guarded_at: Location | None = None


class GraphBreak(CodeLine, frozen=True, kw_only=True):
    """A line of the user's at which torch.compile broke a graph: ``count`` graphs ended there."""

    reason: str
    count: Count


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer that stepped.

    ``tensors`` and ``elements`` are those of all its parameters; ``foreach`` and ``fused`` are as set, None: torch
    decides. ``keeps_gradients`` is whether gradients were the same tensors after `zero_grad` as before: filled with
    zeros, not set to None; None where that was not seen. ``sparse_is_exact`` is whether sparse gradients give the same
    weights as dense ones, and an update touches only the rows that have one; None where that was not recorded.
    ``matrices`` has the shapes of the largest parameters of two dimensions, as ``"40000x48"``, and how many there are
    of each. ``created_at`` is the line that made it, as of a `Loader`.
    """

    kind: str
    tensors: Count
    elements: Count
    dtypes: tuple[str, ...]
    foreach: bool | None = None
    fused: bool | None = None
    keeps_gradients: bool | None = None
    sparse_is_exact: bool | None = None
    matrices: dict[str, Count] = {}
    created_at: Location | None = None


class UnusedGradients(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose backward computes gradients of its parameters that nothing updates.

    ``module`` is its class, ``elements`` the number of those parameters' elements, and ``called_at`` the user's line
    that called it first. ``passes_on`` is whether its inputs need gradients. ``cleared``: an optimizer has the
    parameters, and their gradients are cleared before it steps. Of parts of a model, ``of`` is the model's class,
    ``parts`` their number (``module`` is the largest) and ``share`` their share of the model's trainable elements, 0
    to 1, without tables of embeddings.
    """

    module: str
    elements: Count
    called_at: Location | None = None
    passes_on: bool = False
    cleared: bool = False
    of: str | None = None
    parts: int = 1
    share: float | None = None


class KeptTensors(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that stay alive between steps and whose number grows.

    ``grown`` of them were added in ``steps`` steps, with ``grown_bytes`` of their own. ``graph`` is whether they carry
    an autograd graph, which keeps what the backward would need; ``nodes_grown`` is by how many nodes the largest graph
    grew. ``name`` is what holds them, where that was found, and ``places`` the lines that add to it.
    """

    steps: Count
    grown: Count
    grown_bytes: Count
    graph: bool
    nodes_grown: Count = 0
    name: str | None = None
    places: tuple[Location, ...] = ()


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the inspected batches was padding: ``padded`` of ``elements``, in ``batches`` batches.

    Counted in batches of integers, (samples, length), most of whose rows end in the same number.
    """

    batches: Count
    elements: Count
    padded: Count
