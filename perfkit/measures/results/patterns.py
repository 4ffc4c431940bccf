"""Ops that have a faster form: their lines and their time."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from perfkit._location import Location


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """Ops of one kind at one line: ``count`` of them per step, and their time ``ns`` per step.

    ``at`` is None where no Python frame is known.
    """

    count: float
    ns: int
    at: Location | None = None


class UnfusedAttention(Pattern, frozen=True, kw_only=True):
    """Attention written out: a product, a softmax over the scores, a product with the values.

    Times are per step, of all ``count`` calls at ``at``; ``matmuls_ns`` and ``matmuls_backward_ns`` are the part
    of the two products, ``lines_ns`` all that its lines do, views and backward included. ``scores_bytes`` is the size
    of one call's matrix of scores, ``inputs_bytes`` of what is multiplied; ``masked`` is whether an op between the
    products masked scores, ``trained`` whether a backward ran.
    """

    ops: tuple[str, ...]
    backward_ns: int
    matmuls_ns: int
    matmuls_backward_ns: int
    lines_ns: int
    masked: bool
    scores_bytes: int | None = None
    inputs_bytes: int | None = None
    shape: str | None = None

    @property
    def trained(self) -> bool:
        """Whether a backward ran through it."""
        return self.backward_ns > 0


class ElementwiseChain(Pattern, frozen=True, kw_only=True):
    """Elementwise ops in a row over tensors of one size, each of which reads and writes all of it.

    Times are per step, of all ``count`` runs; ``longest_ns`` is that of the longest forward op and the longest
    backward node, ``functions_ns`` of the ops that compute a function (exp, tanh, a power), with their nodes. Of
    ``bytes`` that the forward ops move in a step, fusing would avoid ``avoided_bytes``: the results in between.
    """

    ops: tuple[str, ...]
    backward_ns: int
    longest_ns: int
    functions_ns: int
    bytes: int
    avoided_bytes: int
    shape: str
    dtype: str


class LayoutCopies(Pattern, frozen=True, kw_only=True):
    """Copies of tensors to another order of their dimensions in memory, at one place; per step."""

    op: str
    bytes: int
    shape: str


class DtypeConversions(Pattern, frozen=True, kw_only=True):
    """Tensors of one shape that a kernel converts from the dtype ``source`` to ``target``; per step.

    ``count`` and ``ns`` are of the forward, ``backward_ns`` is the conversion of their gradients. ``gradients`` is how
    many gradients of this shape and type are accumulated per step: one for each weight and backward; None where the
    tensors are no weights. ``in_loss`` is whether autocast converts them for a loss. ``at`` is the line with most time.
    """

    source: str
    target: str
    shape: str
    backward_ns: int
    gradients: float | None = None
    in_loss: bool = False


class DtypeTime(Pattern, frozen=True, kw_only=True):
    """Time of the ops that read tensors of one type, at one place, with the backward of that line; per step.

    ``mixed`` is whether an op there also read a narrower float: where the type enters.
    """

    dtype: str
    mixed: bool


class MatmulShape(Pattern, frozen=True, kw_only=True):
    """Matrix products of one shape (m, k, n) and type; device time of their kernels per step."""

    op: str
    m: int
    k: int
    n: int
    dtype: str


class BiasBeforeNorm(Pattern, frozen=True, kw_only=True):
    """Convolutions with a bias whose result a batch norm reads; ``ns`` is device time for the bias alone, per step."""


class IndexingGradient(Pattern, frozen=True, kw_only=True):
    """Rows of ``columns`` elements that ``x[index]`` took of a tensor of ``shape``, ``taken`` at a time.

    ``ns`` is the time of adding up their gradients per step: on a device of kernels that sort the index first, on a
    host that of the op.
    """

    shape: str
    columns: int
    taken: int
    dtype: str


class RepeatedForwards(msgspec.Struct, frozen=True, kw_only=True):
    """Forwards that the backward repeats, ``count`` per step: what activation checkpointing costs.

    ``ns`` is their time per step, ``backward_share`` their share (0 to 1) of the host's time in the backward.
    """

    count: float
    ns: int
    backward_share: float


class RetainedGraph(Pattern, frozen=True, kw_only=True):
    """Nodes of the backward that ran again in a later backward of the same step: ``count`` of them per step.

    ``at`` is the line of the backward with most of them, ``share`` their share (0 to 1) of the time of all nodes, and
    ``most`` how often a node ran at most.
    """

    share: float
    most: int


class SliceWrites(Pattern, frozen=True, kw_only=True):
    """Nodes of the backward that writes to parts of tensors made; ``at`` is the line that writes most of them."""


class OptimizerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer's step: host time of its range, by its typical share of a step, and its ops, per step.

    ``at`` is the line that called it, ``body`` the user's line in it that calls most of its ops: None where the
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
    at: Location | None = None
    body: Location | None = None


class EmbeddingGradient(msgspec.Struct, frozen=True, kw_only=True):
    """Lookups in a table of ``rows`` by ``columns`` whose gradient is as large as the table; per step.

    ``looked_up`` rows are looked up, some of them perhaps several times. ``ns`` is the backward of the lookups.
    """

    rows: int
    columns: int
    looked_up: float
    ns: int
    at: Location | None = None


class HostCollective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives that the host waited for, at one place; per step.

    ``waited_ns`` is the time in which the thread that trains had nothing else to do.
    """

    name: str
    count: float
    waited_ns: int
    bytes: int | None = None
    at: Location | None = None


class RepeatedReductions(msgspec.Struct, frozen=True, kw_only=True):
    """All-reduces of gradients in each of an update's ``backwards``, ``count`` per step; only the last one needs its.

    Of the others, as shares of a step (0 to 1): ``waited_share`` is the time in which the thread that trains had
    nothing else to do, ``running_share`` that in which one of them ran, also next to ops.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace of DistributedDataParallel on a CPU with several backwards per update"

    backwards: int
    count: int
    waited_share: float
    running_share: float


class Patterns(msgspec.Struct, frozen=True, kw_only=True):
    """Ops that belong together, found by their order, names, types and shapes.

    Times are per step of the recording, on the device where ``step_ns`` is None; else on the host, where
    ``step_ns`` is a whole typical step, measured in the same way: what counts is a time's share of it.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace with ops; some patterns also need shapes: --record-shapes"

    source: str
    steps: int
    step_ns: int | None
    has_shapes: bool
    attention: tuple[UnfusedAttention, ...] = ()
    chains: tuple[ElementwiseChain, ...] = ()
    layout: tuple[LayoutCopies, ...] = ()
    conversions: tuple[DtypeConversions, ...] = ()
    dtypes: tuple[DtypeTime, ...] = ()
    matmuls: tuple[MatmulShape, ...] = ()
    biases: tuple[BiasBeforeNorm, ...] = ()
    indexing: tuple[IndexingGradient, ...] = ()
    repeated: RepeatedForwards | None = None
    retained: RetainedGraph | None = None
    slice_writes: SliceWrites | None = None
    updates: tuple[OptimizerUpdate, ...] = ()
    tables: tuple[EmbeddingGradient, ...] = ()
    collectives: tuple[HostCollective, ...] = ()
