"""What the lines of a program compute, and need not: a part of lines.json, from the ops and inputs of some steps."""

from __future__ import annotations

from perfkit._location import CodeLine, Location
from perfkit.run.records.steps import Count, Phase


class ConstantOps(CodeLine, frozen=True, kw_only=True):
    """Ops below one user line that compute the same in each step: see `perfkit.record.samplers.constant_ops`.

    Attributes:
        called: The function that the line calls, all of whose ops are such; None where the line itself has them.
        made_at: The user's first line that makes a module of the class whose method the line calls and which leads to
            ``called``; None where no module of a library does.
        busiest: The line that takes most of their time, this one or one of that function.
        ops: How many there are per step, and ``host_ns`` their time, in a step that other work did not slow down but
            in which ops were listened to.
    """

    phase: Phase
    called: Location | None = None
    made_at: Location | None = None
    busiest: Location
    ops: Count
    host_ns: Count


class RepeatedOps(CodeLine, frozen=True, kw_only=True):
    """Ops below one line that compute what was computed before in the same step.

    See `perfkit.record.samplers.repeated_ops`.

    Attributes:
        busiest: The line that takes most of their time, this one or one that it leads to.
        ops: How many there are in a step, and ``host_ns`` their time, in which ops were listened to; of all ops that
            are neither the same in each step nor of the backward or the optimizer, ``of_ns``.
        most: How often a result was computed at most.
        builds_graph: Whether a backward may follow most of them.
    """

    busiest: Location
    ops: Count
    host_ns: Count
    of_ns: Count
    most: Count
    builds_graph: bool


class UnreadResults(CodeLine, frozen=True, kw_only=True):
    """A line below which ops compute what nothing reads: see `perfkit.record.samplers.unread_results`.

    Attributes:
        called: The function that the line calls, all of whose ops are such; None where the line itself has them.
        busiest: The line that takes most of their time, this one or one that it leads to.
        ops: How many there are in a step, and ``host_ns`` their time, in which ops were listened to; of all ops that
            are neither of the backward nor of the optimizer, ``of_ns``.
        draws: Whether some of them draw random numbers.
    """

    called: str | None = None
    busiest: Location
    ops: Count
    host_ns: Count
    of_ns: Count
    draws: bool = False


class IgnoredTargets(CodeLine, frozen=True, kw_only=True):
    """Losses over ``classes`` in one line: of ``targets`` in a step they ignore ``ignored``, as those of padding."""

    targets: Count
    ignored: Count
    classes: Count


class SubnormalInputs(CodeLine, frozen=True, kw_only=True):
    """Products of one line: of ``looked_at`` elements of their inputs in a step ``subnormal`` are subnormal numbers."""

    op: str
    looked_at: Count
    subnormal: Count


class WideBroadcast(CodeLine, frozen=True, kw_only=True):
    """An op in one line on two tensors of as many elements, of shapes ``one`` and ``other``, that pairs each element
    of one with each of the other: its result has the shape ``wide``. ``calls`` is its number in a step."""

    op: str
    calls: Count
    one: tuple[int, ...]
    other: tuple[int, ...]
    wide: tuple[int, ...]


class DroppedRows(CodeLine, frozen=True, kw_only=True):
    """A line that picks ``picked`` of the ``rows`` rows that the lines ``made_at`` computed in the same step.

    ``shape`` are the first dimensions of what they computed, whose product is ``rows``; empty where it is ``rows``.
    ``columns`` is None for all that these lines compute of those rows; else it is only a product whose result has so
    many columns, and ``picked`` how many rows as much is as is read of it: its diagonal where ``is_diagonal``.
    """

    rows: Count
    picked: Count
    columns: Count | None = None
    is_diagonal: bool = False
    shape: tuple[Count, ...] = ()
    made_at: tuple[Location, ...]


class GatedRows(CodeLine, frozen=True, kw_only=True):
    """A line that multiplies each row of a tensor by a number of its own, in ``calls`` calls in a step.

    All calls together have ``rows`` rows; for ``used`` of them the factor is not zero.
    """

    rows: Count
    used: Count
    calls: Count


class RebuiltBuffer(CodeLine, frozen=True, kw_only=True):
    """A line that copies a buffer to add to it: ``added`` of the ``elements`` of its ``calls`` results in a step.

    ``library`` is the import name of the library whose function copies, None where the line itself does.
    """

    calls: Count
    elements: Count
    added: Count
    library: str | None = None


class SparseInput(CodeLine, frozen=True, kw_only=True):
    """A line that multiplies matrices of one ``shape`` (rows, columns), most of whose elements are zero.

    Of the ``elements`` that go into its ``calls`` products in a step, ``nonzero`` are not zero. It ``is_one_hot`` where
    each row of the left operand has a single one. It ``is_attention`` where the matrices are softmaxes of masked
    scores: what a dropout sets to zero after them counts as not zero.
    """

    shape: tuple[Count, Count]
    elements: Count
    nonzero: Count
    calls: Count
    is_one_hot: bool
    is_attention: bool = False


class DiagonalMatrix(CodeLine, frozen=True, kw_only=True):
    """A line that factors, or solves with, only diagonal matrices of ``size`` rows, in ``calls`` calls in a step."""

    size: Count
    calls: Count


class NumpyDraw(CodeLine, frozen=True, kw_only=True):
    """A line that calls numpy's ``choice``.

    ``permutes`` is whether it permutes all numbers to draw some of them; else it adds up weights in each call.
    """

    permutes: bool


class SlowFft(CodeLine, frozen=True, kw_only=True):
    """A line with Fourier transforms of a ``length`` that has a large prime factor, in ``calls`` calls in a step."""

    length: Count
    calls: Count


class MaskedPlaces(CodeLine, frozen=True, kw_only=True):
    """Attention of a line, called from ``called_from``, over the places of samples: its ``shape`` (samples, places).

    ``visible`` of all places are seen by a query. In the results of layers of these ``widths`` no other ones have a
    gradient.
    """

    called_from: Location
    shape: tuple[Count, Count]
    visible: Count
    widths: tuple[Count, ...]


class RepeatedHeads(CodeLine, frozen=True, kw_only=True):
    """A line whose attention reads copies of keys or values, of which each head has ``times`` equal ones.

    The lines ``copied_at`` make them. The attention has ``calls`` calls in a step, with ``queries`` queries at most.
    """

    copied_at: tuple[Location, ...]
    times: Count
    queries: Count
    calls: Count


class RepeatedRows(CodeLine, frozen=True, kw_only=True):
    """A line whose linear layer, from ``columns`` to ``results`` features, gets rows several times.

    Of the ``rows`` of its ``calls`` calls in a step ``different`` are different, and ``needed`` are computed where the
    layer comes before what repeats them: at least as many, as nodes of a graph that no edge begins at are among them.
    """

    rows: Count
    different: Count
    needed: Count
    columns: Count
    results: Count
    calls: Count


class RepeatedLayer(CodeLine, frozen=True, kw_only=True):
    """A line whose op gets copies of samples in ``repeated`` of its ``calls`` calls in a step.

    Of a convolution ``shape`` and ``weight`` are those of its input and its weight, as 8x3x64x64; what stands between
    layers has no weight; of a product ``flops`` are known. ``called_at`` is the line that leads to it in the function
    that made the copies, where these are known.
    """

    shape: str = ""
    weight: str = ""
    flops: Count = 0
    calls: Count
    repeated: Count
    called_at: Location


class RepeatedSamples(CodeLine, frozen=True, kw_only=True):
    """A line whose convolution gets ``samples`` samples of which ``needed`` would do, and ``layers`` from it on.

    ``copied_at`` is the line that repeats them; None where it is not known.
    """

    samples: Count
    needed: Count
    copied_at: Location | None
    layers: tuple[RepeatedLayer, ...]


class ProductOrder(CodeLine, frozen=True, kw_only=True):
    """A line with a product ``left @ right`` that one other product reads, in an order that takes more work.

    The result are ``matrices`` of ``rows`` times ``columns``, with sums over ``inner`` products, in each of ``calls``
    calls in a step. The other product multiplies it, or with ``is_transposed`` its transpose, by a factor that adds
    ``outer`` columns or, where the result is not the left factor (``is_left``), rows. ``read_at`` are the lines of that
    product, and of copies and multiplications by a number before it.
    """

    matrices: Count
    rows: Count
    columns: Count
    inner: Count
    outer: Count
    is_left: bool
    is_transposed: bool
    calls: Count
    read_at: tuple[Location, ...]


class ResizeOrder(CodeLine, frozen=True, kw_only=True):
    """A line that resizes a map before a layer makes other channels of it, or has a layer whose result is averaged.

    The interpolation or the average makes the second number of all samples' ``places`` of the first one, the layer
    computes the second number of ``channels`` from the first one for each place, in each of ``calls`` calls in a step.
    Resizing comes first where places become more, the layer where they become fewer. ``read_at`` are the lines of
    copies of the result and, last, of the other op.
    """

    places: tuple[Count, Count]
    channels: tuple[Count, Count]
    calls: Count
    read_at: tuple[Location, ...]


class SavedViews(CodeLine, frozen=True, kw_only=True):
    """A line that saves tensors of together ``bytes`` in ``calls`` pickles of a step, and ``storage_bytes`` with them.

    A memory is counted once in each pickle that writes it once. ``passed_at`` are the lines from this one outwards, up
    to the one in the function that made the view or called what made it; this line alone where that is not known. All
    of them are ``in_memory`` where ``pickle`` makes them, and not ``torch.save``, which writes a file as well.
    """

    calls: Count
    bytes: Count
    storage_bytes: Count
    passed_at: tuple[Location, ...] = ()
    in_memory: bool = False


class RepeatedClosure(CodeLine, frozen=True, kw_only=True):
    """A line that steps an L-BFGS whose closure is first called at a point that the step before has evaluated.

    Attributes:
        steps: The steps that were watched, ``calls`` the calls of the closure in them, and ``again`` the steps whose
            first call had the parameters, the loss and the gradients of a call in the step before; ``compared`` the
            steps of which that was looked for.
        host_ns: The time of such a call, of ``of_ns`` from one step to the next (medians).
        max_iter: How many iterations a step has at most, and ``max_eval`` how many calls, which stops a line search
            too; ``ended_by_max_eval`` the steps that had so many or more.
        share: The share of the run's steps in which an L-BFGS stepped, 0 to 1.
        made_at: The line that makes the optimizer, as ``created_at`` of `OptimizerFacts`.
    """

    steps: Count
    calls: Count
    compared: Count
    again: Count
    host_ns: Count
    of_ns: Count
    max_iter: Count
    max_eval: Count
    ended_by_max_eval: Count
    share: float
    made_at: Location | None = None


class WeightPenalty(CodeLine, frozen=True, kw_only=True):
    """A line that sums up the squares of ``parameters`` parameters of together ``elements`` elements in a step.

    ``shapes`` are the different shapes of these, the first 64 of them.
    """

    parameters: Count
    elements: Count
    shapes: tuple[tuple[int, ...], ...] = ()


class RecomputedOutputs(CodeLine, frozen=True, kw_only=True):
    """Calls of a module whose parameters nothing changes, from one line, in the whole run.

    Of ``inputs`` rows that it got, it had had ``again`` in an earlier step. ``of`` is the class of the model that the
    module is a part of, None where it is called by itself. ``called_from`` is the line from which the line's function
    was called when an input came again first.
    """

    module: str
    of: str | None = None
    inputs: Count
    again: Count
    called_from: Location | None = None
