"""Ops that belong together: attention written out, elementwise ops in a row, copies to another layout, wide types.

What the order of the ops cannot tell, types and shapes do: they are in a trace recorded with ``record_shapes``, as the
step for lines is.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from perfkit.measures.calls import Calls, CallTimes
from perfkit.measures.kernel_classes import class_of
from perfkit.measures.nested import sum_by
from perfkit.measures.op_work import SIZES
from perfkit.measures.results.patterns import (
    BiasBeforeNorm,
    CodePlace,
    ElementwiseChain,
    LayoutCopies,
    Patterns,
    ProductShape,
    TypeTime,
    WrittenAttention,
)
from perfkit.measures.updates import measure_collectives, measure_updates
from perfkit.measures.work import communicates
from perfkit.run.reading import LineTimes
from perfkit.run.records import TracedLine
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints

#: Rows of each sort that are kept, longest first.
MOST = 50


def _named(*words: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for part in words for name in part.split())


#: Give another look at the same memory, or read no tensor: they neither part a chain nor belong to one.
VIEWS = _named(
    "view reshape transpose permute expand expand_as select slice unsqueeze squeeze t detach alias as_strided",
    "unbind split chunk unflatten flatten narrow movedim swapaxes view_as lift_fresh numpy_T mT real imag",
    "_unsafe_view size stride is_same_size result_type can_cast broadcast_tensors view_as_real view_as_complex",
)
#: One pass over their tensors each, little arithmetic.
SIMPLE = _named(
    "add sub rsub mul div neg abs reciprocal clamp clamp_min clamp_max relu where masked_fill addcmul addcdiv lerp",
    "maximum minimum true_divide multiply square threshold eq ne lt le gt ge logical_and logical_or logical_not",
    "bitwise_not sign sgn dropout feature_dropout hardtanh relu6 leaky_relu",
)
#: Each element costs a function of many instructions, which fusing does not save.
FUNCTIONS = _named(
    "exp log log1p expm1 sqrt rsqrt pow sin cos tan erf sigmoid tanh silu gelu elu softplus mish selu celu log_sigmoid",
    "hardswish hardsigmoid atan exp2 log2 log10",
)
PRODUCTS = _named("matmul bmm baddbmm einsum")
SOFTMAX = _named("softmax _softmax special_softmax")
#: What stands between the products of an attention reads its scores or makes its mask; a layer is none of it.
_LAYER = re.compile(r"^aten::(?:linear|addmm|conv|_conv|\w+_norm|embedding|lstm|gru|rnn|cross_entropy|scaled_dot)")
#: Ops between a product and the softmax: a scale, a bias, a mask, and what makes them.
NEAR = 12
_MASKING = re.compile(r"masked_fill|where|tril|triu")
#: Ops in a row that make a chain: two are what most models hold (add and activation), and little to gain.
LEAST_IN_CHAIN = 3
#: Bytes of a tensor that stays in a processor's first-level cache (32 to 64 KB): below, no traffic is avoided.
SMALL = 64 * 2**10

ARGUMENTS = ("Input Dims", "Input type", "Input Strides")


class _Given(NamedTuple):
    """The tensors among the arguments of one call: shape, type and strides of each."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    strides: tuple[tuple[int, ...] | None, ...]

    @property
    def elements(self) -> int:
        return max((math.prod(shape) for shape in self.shapes), default=0)

    def largest(self) -> int:
        """The index of the largest tensor."""
        return max(range(len(self.shapes)), key=lambda i: math.prod(self.shapes[i]))


def measure_patterns(
    trace: Trace,
    times: LineTimes | None = None,
    traced: Sequence[TracedLine] = (),
    typical: CallTimes | None = None,
) -> Patterns | None:
    """Patterns in the ops of a trace; None where it has no ops.

    Args:
        trace: Best with shapes, and with Python frames (lines): see `perfkit.measures.frames.with_frames`.
        times: As for `perfkit.measures.lines.measure_source_lines`.
        traced: Likewise.
        typical: Times of the same calls in other steps, which are then taken; of this trace itself by default.
    """
    calls = Calls(trace, times, traced, typical)
    if not calls.rows.size:
        return None
    inner = _Inner(calls)
    given = _Reader(trace, inner.rows)
    return Patterns(
        source=trace.path.name,
        steps=calls.steps,
        step_ns=calls.step_ns,
        has_shapes=given.any,
        attention=_longest(_attention(calls, given)),
        chains=_longest(_chains(calls, given)) if given.any else (),
        layout=_longest(_layout(calls, given, inner)) if given.any else (),
        types=_longest(_types(calls, given, inner)) if given.any else (),
        products=_longest(_products(calls, given, inner)) if given.any and calls.on_device else (),
        biased=tuple(_biased(calls, given)) if given.any and calls.on_device else (),
        updates=measure_updates(calls),
        collectives=measure_collectives(calls, typical),
    )


def _longest(found: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(found, key=lambda one: -(one.ns + getattr(one, "backward_ns", 0)))[:MOST])


class _Reader:
    """Reads the arguments of ops, each once."""

    def __init__(self, trace: Trace, rows: Ints) -> None:
        rows = np.unique(rows)
        self._rows = rows
        self._place = {row: i for i, row in enumerate(rows.tolist())}
        self._fields = {}
        if rows.size and trace.metadata.record_shapes is not False:
            self._fields = trace.fields(rows, ARGUMENTS)
        self.any = bool(self._fields and self._fields["Input type"].values)
        self._known: dict[tuple[int, ...], _Given | None] = {}

    def mentions(self, rows: Ints, dtypes: Container[str]) -> Bools:
        """Which of these ops, in the order that was read, have an argument of one of these types."""
        field = self._fields["Input type"]
        has = np.array([isinstance(value, list) and any(one in dtypes for one in value) for value in field.values])
        at = np.searchsorted(self._rows, rows)
        return np.append(has, False)[field.codes[at]]

    def __call__(self, row: int) -> _Given | None:
        """The tensors that an op got; None where the trace does not tell."""
        if not self.any:
            return None
        at = self._place[row]
        key = tuple(int(self._fields[name].codes[at]) for name in ARGUMENTS)
        if key not in self._known:
            values = [
                self._fields[name].values[code] if code >= 0 else None
                for name, code in zip(ARGUMENTS, key, strict=True)
            ]
            self._known[key] = _given(*values)
        return self._known[key]


def _given(dims: Any, types: Any, strides: Any) -> _Given | None:
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    steps = strides if isinstance(strides, list) and len(strides) == len(dims) else [None] * len(dims)
    shapes, dtypes, found = [], [], []
    for shape, dtype, step in zip(dims, types, steps, strict=False):
        if dtype not in SIZES or not isinstance(shape, list):
            continue
        if not all(type(n) is int and 0 <= n < 2**48 for n in shape):
            return None
        shapes.append(tuple(shape))
        dtypes.append(dtype)
        fits = isinstance(step, list) and len(step) == len(shape) and all(type(n) is int for n in step)
        found.append(tuple(step) if fits else None)
    return _Given(tuple(shapes), tuple(dtypes), tuple(found)) if shapes else None


class _Inner:
    """The calls and all ops inside them: ``rows``, of each its ``own`` part of its call's cost (a float, ns).

    ``place`` is the index of the call whose line it belongs to: its call, or the one that made the node that it is in;
    -1 where that is not known.
    """

    def __init__(self, calls: Calls) -> None:
        trace = calls.trace
        ops = trace.is_kind(Kind.OP)
        self.rows = np.flatnonzero(ops & (calls.of >= 0))
        caller = trace.above(ops)[self.rows]
        index = np.full(len(trace), -1, np.int64)
        index[self.rows] = np.arange(self.rows.size)
        of = calls.of[self.rows]
        self.in_node = calls.is_node[of]
        self.place = np.where(self.in_node, calls.maker[of], of)
        if calls.on_device:
            # What computes: a collective lasts until another rank comes, and copies are told by themselves.
            work = trace.device_rows[trace.kind[trace.device_rows] == Kind.KERNEL]
            work = work[(trace.launch[work] >= 0) & ~communicates(trace, work)]
            launcher = trace.above(ops)[trace.launch[work]]
            launcher = np.where(launcher >= 0, index[launcher], -1)
            work, launcher = work[launcher >= 0], launcher[launcher >= 0]
            self.own = sum_by(launcher, (trace.end_ns - trace.start_ns)[work], self.rows.size).astype(float)
            return
        duration = (trace.end_ns - trace.start_ns)[self.rows]
        parent = np.where(caller >= 0, index[caller], -1)
        inside = parent >= 0
        own = np.maximum(0, duration - sum_by(parent[inside], duration[inside], self.rows.size))
        whole = (trace.end_ns - trace.start_ns)[calls.rows[of]]
        self.own = calls.cost[of] * (own / np.maximum(whole, 1))

    def named(self, trace: Trace, names: Container[str]) -> Ints:
        """Indices of the ops of these names."""
        return np.flatnonzero(np.array([name in names for name in trace.names])[trace.name[self.rows]])

    def places(self, calls: Calls, chosen: Ints) -> list[CodePlace | None]:
        """The lines of the ops at these indices."""
        at = self.place[chosen]
        found = calls.places(np.maximum(at, 0).tolist())
        return [place if known else None for place, known in zip(found, (at >= 0).tolist(), strict=True)]


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(length) for length in shape)


def _plain(name: str) -> str:
    """An op's name without the underscore of its form in place."""
    return name.removesuffix("_")


class _Sums:
    """Adds numbers up by key."""

    def __init__(self) -> None:
        self.by: dict[Any, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, key: Any, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.by[key][name] += amount


# -- attention ---------------------------------------------------------------------------------------------


def _attention(calls: Calls, given: _Reader) -> Iterator[WrittenAttention]:
    """A product, a softmax near behind it and a product near behind that, with no layer between them."""
    order = [i for i in calls.forward.tolist() if calls.name(i) not in VIEWS]
    names = [calls.name(i) for i in order]
    found: dict[Any, list[list[int]]] = defaultdict(list)
    softmaxes = []
    for at, name in enumerate(names):
        if name not in SOFTMAX:
            continue
        before = _near(names, range(at - 1, max(-1, at - 1 - NEAR), -1))
        after = _near(names, range(at + 1, min(len(names), at + 1 + NEAR)))
        if before is not None and after is not None:
            softmaxes.append((order[at], order[before : after + 1]))
    if not softmaxes:
        return
    places = calls.places([softmax for softmax, _ in softmaxes])
    at_line: dict[CodePlace | None, int] = defaultdict(int)
    every_place = dict(zip(calls.forward.tolist(), calls.places(calls.forward.tolist()), strict=True))
    for i, one in every_place.items():
        at_line[one] += int(calls.whole_cost[i])
    for (softmax, members), place in zip(softmaxes, places, strict=True):
        scores = given(int(calls.rows[softmax]))
        shape = scores.shapes[0] if scores is not None else None
        key = (place, tuple(calls.name(i) for i in members), shape, scores.dtypes[0] if scores is not None else None)
        found[key].append(members)
    for (place, ops, shape, dtype), groups in found.items():
        products = [i for members in groups for i in (members[0], members[-1])]
        every = [i for members in groups for i in members]
        inputs = [given(int(calls.rows[i])) for i in (groups[0][0], groups[0][-1])]
        sizes = [
            math.prod(shape_) * SIZES[dtype_]
            for one in inputs
            if one is not None
            for shape_, dtype_ in zip(one.shapes, one.dtypes, strict=True)
        ]
        scores_bytes = math.prod(shape) * SIZES[dtype] if shape is not None else None
        yield WrittenAttention(
            ops=ops,
            count=len(groups) / calls.steps,
            ns=int(calls.cost[every].sum()) // calls.steps,
            backward_ns=int(calls.node_cost[every].sum()) // calls.steps,
            products_ns=int(calls.cost[products].sum()) // calls.steps,
            products_backward_ns=int(calls.node_cost[products].sum()) // calls.steps,
            lines_ns=sum(at_line[one] for one in {every_place[i] for i in every}) // calls.steps,
            masked=any(_MASKING.search(name) for name in ops),
            place=place,
            scores_bytes=scores_bytes,
            # The scores are among the inputs of the second product.
            inputs_bytes=max(0, sum(sizes) - scores_bytes) if scores_bytes is not None else None,
            shape=_shape(shape) if shape is not None else None,
        )


def _near(names: list[str], places: Iterable[int]) -> int | None:
    """The nearest product, with no layer or other softmax before it."""
    for at in places:
        if names[at] in PRODUCTS:
            return at
        if names[at] in SOFTMAX or _LAYER.match(names[at]):
            return None
    return None


# -- elementwise ops in a row ------------------------------------------------------------------------------


def _chains(calls: Calls, given: _Reader) -> Iterator[ElementwiseChain]:
    """Neighbours that are elementwise over the same number of elements."""
    chains: list[tuple[list[int], _Given]] = []
    run: list[int] = []
    of_run: _Given | None = None

    def end() -> None:
        # The same op again and again is many tensors, each by itself.
        distinct = len({calls.name(index) for index in run}) > 1
        if len(run) >= LEAST_IN_CHAIN and distinct and of_run is not None:
            chains.append((list(run), of_run))
        run.clear()

    for index in calls.forward.tolist():
        name = calls.name(index)
        if name in VIEWS:
            continue
        got = given(int(calls.rows[index])) if _plain(name) in SIMPLE or _plain(name) in FUNCTIONS else None
        if got is None or got.elements * SIZES[got.dtypes[got.largest()]] < SMALL:
            # Ops on small tensors (a mask, a scale) stand beside the chain.
            if got is None:
                end()
            continue
        if run and of_run is not None and got.elements != of_run.elements:
            end()
        run.append(index)
        of_run = got
    end()
    by_place: dict[Any, list[tuple[list[int], _Given]]] = defaultdict(list)
    for (members, got), first in zip(chains, calls.places([members[0] for members, _ in chains]), strict=True):
        names = tuple(calls.name(i) for i in members)
        by_place[first, names, got.shapes[got.largest()], got.dtypes[got.largest()]].append((members, got))
    for (_, names, shape, dtype), groups in by_place.items():
        every = [i for members, _ in groups for i in members]
        by_line: dict[CodePlace | None, int] = defaultdict(int)
        for i, at in zip(every, calls.places(every), strict=True):
            by_line[at] += int(calls.whole_cost[i])
        place = max(by_line, key=lambda one: by_line[one])
        functions = [i for i in every if _plain(calls.name(i)) in FUNCTIONS]
        size = math.prod(shape) * SIZES[dtype]
        read = sum(_large_bytes(given(int(calls.rows[i])), size) for members, _ in groups for i in members)
        longest = sum(int(calls.cost[members].max()) + int(calls.node_cost[members].max()) for members, _ in groups)
        yield ElementwiseChain(
            ops=names,
            count=len(groups) / calls.steps,
            ns=int(calls.cost[every].sum()) // calls.steps,
            backward_ns=int(calls.node_cost[every].sum()) // calls.steps,
            longest_ns=longest // calls.steps,
            functions_ns=int(calls.whole_cost[functions].sum()) // calls.steps,
            bytes=(read + len(every) * size) // calls.steps,
            # Each result but the last is written, and read by the next op.
            avoided_bytes=2 * size * (len(every) - len(groups)) // calls.steps,
            shape=_shape(shape),
            dtype=dtype,
            place=place,
        )


def _large_bytes(got: _Given | None, size: int) -> int:
    """Bytes of the tensors that are as large as the result."""
    if got is None:
        return 0
    sizes = [math.prod(shape) * SIZES[dtype] for shape, dtype in zip(got.shapes, got.dtypes, strict=True)]
    return sum(one for one in sizes if 2 * one > size)


# -- copies to another layout ------------------------------------------------------------------------------


#: What a user writes to get another layout; an op that copies inside itself is not the user's conversion.
EXPLICIT = _named("contiguous clone reshape flatten to copy_ _to_copy")


def _layout(calls: Calls, given: _Reader, inner: _Inner) -> Iterator[LayoutCopies]:
    """Copies between tensors of one type that lie with another dimension innermost."""
    chosen, shapes, sizes = [], [], []
    for at in inner.named(calls.trace, ("aten::copy_",)).tolist():
        row = int(inner.rows[at])
        if not inner.in_node[at] and calls.name(int(calls.of[row])) not in EXPLICIT:
            continue
        got = given(row)
        if got is None or len(got.shapes) < 2 or not _turned(got):
            continue
        size = math.prod(got.shapes[0]) * SIZES[got.dtypes[0]]
        if size >= SMALL:
            chosen.append(at)
            shapes.append(_shape(got.shapes[0]))
            sizes.append(size)
    copies = np.array(chosen, np.int64)
    places = inner.places(calls, copies)
    # A backward copies gradients that come in another layout, too, where nobody converted anything.
    converted = {place for place, in_node in zip(places, inner.in_node[copies].tolist(), strict=True) if not in_node}
    sums = _Sums()
    for i, place in enumerate(places):
        if place not in converted:
            continue
        sums.add((place, shapes[i]), ns=float(inner.own[copies[i]]), bytes=sizes[i], count=1)
    for (place, shape), total in sums.by.items():
        yield LayoutCopies(
            op="aten::copy_",
            count=total["count"] / calls.steps,
            ns=round(total["ns"] / calls.steps),
            bytes=round(total["bytes"] / calls.steps),
            shape=shape,
            place=place,
        )


def _turned(got: _Given) -> bool:
    """Whether the copy's two tensors, of one shape and type, have another dimension innermost in memory."""
    if got.shapes[0] != got.shapes[1] or got.dtypes[0] != got.dtypes[1]:
        return False
    one, other = got.strides[0], got.strides[1]
    if one is None or other is None:
        return False
    long = [i for i, length in enumerate(got.shapes[0]) if length > 1]
    if len(long) < 2 or any(one[i] == 0 or other[i] == 0 for i in long):
        return False
    return min(long, key=lambda i: one[i]) != min(long, key=lambda i: other[i])


# -- types -------------------------------------------------------------------------------------------------

_WIDE = {"double": "float64", "c10::complex<double>": "float64"}
_NARROW = frozenset(("float", "c10::Half", "c10::BFloat16", "c10::complex<float>"))


def _types(calls: Calls, given: _Reader, inner: _Inner) -> Iterator[TypeTime]:
    """Time in float64: the ops that read such a tensor of more than one element."""
    chosen, mixed = [], []
    aten = np.array([name.startswith("aten::") for name in calls.trace.names])
    # A compiled region takes many tensors, of which one double tells nothing about its kernels.
    for at in np.flatnonzero(aten[calls.trace.name[inner.rows]] & given.mentions(inner.rows, _WIDE)).tolist():
        got = given(int(inner.rows[at]))
        if got is None:
            continue
        of_size = {dtype for shape, dtype in zip(got.shapes, got.dtypes, strict=True) if math.prod(shape) > 1}
        if of_size & _WIDE.keys():
            chosen.append(at)
            mixed.append(bool(of_size & _NARROW))
    wide = np.array(chosen, np.int64)
    sums = _Sums()
    enters: set[CodePlace | None] = set()
    for i, place in enumerate(inner.places(calls, wide)):
        sums.add(place, ns=float(inner.own[wide[i]]), ops=1)
        if mixed[i] and not inner.in_node[wide[i]]:
            enters.add(place)
    for place, total in sums.by.items():
        yield TypeTime(
            dtype="float64",
            ns=round(total["ns"] / calls.steps),
            ops=total["ops"] / calls.steps,
            mixed=place in enters,
            place=place,
        )


# -- on a device: shapes of products, biases before norms --------------------------------------------------

_MATMULS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


def _products(calls: Calls, given: _Reader, inner: _Inner) -> Iterator[ProductShape]:
    """Matrix products by shape and type, with the device time of their kernels."""
    trace = calls.trace
    chosen = inner.named(trace, _MATMULS)
    places = inner.places(calls, chosen)
    sums = _Sums()
    where: dict[Any, CodePlace | None] = {}
    for i, row in enumerate(inner.rows[chosen].tolist()):
        got = given(row)
        first = _MATMULS[trace.names[trace.name[row]]]
        if got is None or len(got.shapes) < first + 2:
            continue
        left, right = got.shapes[first], got.shapes[first + 1]
        if len(left) < 2 or len(right) < 2:
            continue
        key = (trace.names[trace.name[row]], left[-2], left[-1], right[-1], got.dtypes[first])
        sums.add(key, ns=float(inner.own[chosen[i]]), count=1)
        where[key] = where.get(key) or places[i]
    for (op, m, k, n, dtype), total in sums.by.items():
        yield ProductShape(
            op=op,
            m=m,
            k=k,
            n=n,
            dtype=dtype,
            count=total["count"] / calls.steps,
            ns=round(total["ns"] / calls.steps),
            place=where.get((op, m, k, n, dtype)),
        )


_CONVOLUTION = re.compile(r"^aten::conv(?:olution|[123]d)$")
_BATCH_NORM = re.compile(r"^aten::(?:_?batch_norm\w*|native_batch_norm|cudnn_batch_norm|miopen_batch_norm)$")


def _biased(calls: Calls, given: _Reader) -> Iterator[BiasBeforeNorm]:
    """Convolutions with a bias right before a batch norm, and the kernels that add it and sum its gradient."""
    order = [i for i in calls.forward.tolist() if calls.name(i) not in VIEWS]
    chosen = []
    for index, following in pairwise(order):
        if not (_CONVOLUTION.match(calls.name(index)) and _BATCH_NORM.match(calls.name(following))):
            continue
        got = given(int(calls.rows[index]))
        # Input, weight, bias: an absent bias has no type.
        if got is not None and len(got.shapes) >= 3 and len(got.shapes[2]) == 1 and got.shapes[2][0] > 1:
            chosen.append(index)
    if not chosen:
        return
    spent = _bias_kernels(calls, chosen)
    sums = _Sums()
    for index, place in zip(chosen, calls.places(chosen), strict=True):
        sums.add(place, ns=float(spent.get(index, 0)), count=1)
    for place, total in sums.by.items():
        yield BiasBeforeNorm(count=total["count"] / calls.steps, ns=round(total["ns"] / calls.steps), place=place)


def _bias_kernels(calls: Calls, chosen: list[int]) -> dict[int, int]:
    """By convolution: elementwise kernels that it launched (adding the bias), reductions in its node (the gradient)."""
    trace = calls.trace
    wanted = set(chosen)
    work = trace.device_rows[(trace.kind[trace.device_rows] == Kind.KERNEL)]
    work = work[trace.launch[work] >= 0]
    index = calls.of[trace.launch[work]]
    found: dict[int, int] = defaultdict(int)
    classes: dict[int, str] = {}
    for row, at in zip(work[index >= 0].tolist(), index[index >= 0].tolist(), strict=True):
        maker = int(calls.maker[at]) if calls.is_node[at] else at
        if maker not in wanted:
            continue
        code = int(trace.name[row])
        kind = classes.setdefault(code, class_of(trace.names[code]))
        if kind == ("reduction" if calls.is_node[at] else "elementwise"):
            found[maker] += int(trace.end_ns[row] - trace.start_ns[row])
    return found
