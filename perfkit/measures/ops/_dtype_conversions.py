"""Kernels that only convert tensors from one floating dtype to another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit._location import Location
from perfkit.measures._rows import nearest_above
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_arguments import Tensor
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._op_names import named
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader, shape_text
from perfkit.measures.results.patterns import DtypeConversions
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Ints

#: Time in float64 is a measure of its own, and 8-bit types are made by quantizing.
_NAMES = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_HALF = ("c10::Half", "c10::BFloat16")
#: The op around the copy: `to` in traces of torch before 1.11.
_CONVERTING = named("_to_copy to")
#: What a user's `.float()`, `.half()`, `.type_as()` and `.to(dtype)` call.
_WRITTEN = named("to _to_copy type_as")
#: Losses, for which autocast converts their input to float32. A softmax is also a part of attention.
_LOSSES = named(
    "cross_entropy_loss nll_loss nll_loss_nd log_softmax kl_div mse_loss l1_loss smooth_l1_loss huber_loss",
    "binary_cross_entropy_with_logits cosine_embedding_loss",
)
#: Runs once per backward for each parameter that gets a gradient, with that gradient.
_ACCUMULATES = ("torch::autograd::AccumulateGrad",)
#: Bytes of the wider tensor from which moving it takes longer than a kernel that does nothing: 4 and 2 MiB take 3 µs
#: at 2 TB/s, and a kernel at least 2 µs. Smaller ones are a matter of launches, not of types.
_LARGE = 4 * 2**20

_Weight = tuple[tuple[int, ...], str]


class _Conversion(NamedTuple):
    """One conversion of the forward; ``at`` is its index among the inner ops, ``maker`` the row its node points to."""

    at: int
    call: int
    source: Tensor
    target: Tensor
    maker: int


def find_conversions(calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps) -> Iterator[DtypeConversions]:
    """Conversions of weights, and of large tensors that the program or a loss asks for, with their backward.

    A tensor with the shape and type of a gradient that is accumulated is a weight. What autocast converts for other ops
    than losses is not looked at.
    """
    copies, above, within = _converting_copies(calls, arguments, inner)
    if not copies.size:
        return
    pairs = pair_backward(calls.trace)
    forward = np.zeros(calls.rows.size, bool)
    forward[calls.forward] = True
    of = calls.of[inner.rows[copies]]
    makers = np.where(np.isin(above, pairs.maker), above, np.where(np.isin(within, pairs.maker), within, -1))
    backward_ns = _backward_ns(calls, inner, copies, pairs.node, pairs.maker)
    gradients = _accumulated(calls, arguments, inner)
    weights, others = [], []
    for at, call, maker in zip(
        copies[forward[of]].tolist(), of[forward[of]].tolist(), makers[forward[of]].tolist(), strict=True
    ):
        target, source = arguments(int(inner.rows[at]))[:2]
        one = _Conversion(at, call, source, target, maker)
        if (source.shape, source.dtype) in gradients:
            # Without a node it is a weight of a model that is not trained, or a copy of one.
            if maker >= 0 and not _may_be_input(calls, arguments, one):
                weights.append(one)
        elif max(source.bytes, target.bytes) >= _LARGE and calls.names[call] in _WRITTEN | _LOSSES:
            others.append(one)
    yield from _by_weight(calls, inner, weights, gradients, backward_ns)
    yield from _by_place(calls, inner, others, backward_ns)


def _converting_copies(calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps) -> tuple[Ints, Ints, Ints]:
    """Indices of the copies that convert by a kernel, the rows of the op above each, and of the one above that."""
    trace = calls.trace
    copies = inner.named(("aten::copy_",))
    copies = copies[(inner.own[copies] > 0) & arguments.mentions(inner.rows[copies], _HALF)]
    ops = trace.is_kind(Kind.OP)
    above = nearest_above(trace, inner.rows[copies], ops)
    converts = np.append(np.array([name in _CONVERTING for name in trace.names], bool)[trace.name], False)
    kept = converts[above] & np.array([_changes_dtype(arguments(row)) for row in inner.rows[copies].tolist()], bool)
    copies, above = copies[kept], above[kept]
    within = nearest_above(trace, above, ops)
    return copies, above, np.where(converts[within], within, -1)


def _changes_dtype(tensors: tuple[Tensor, ...]) -> bool:
    return (
        len(tensors) >= 2 and tensors[0].dtype != tensors[1].dtype and {t.dtype for t in tensors[:2]} <= _NAMES.keys()
    )


def _backward_ns(calls: OpCalls, inner: InnerOps, copies: Ints, nodes: Ints, makers: Ints) -> dict[int, float]:
    """By the row that made a node: time of the conversions in it."""
    maker_of = dict(zip(nodes.tolist(), makers.tolist(), strict=True))
    found: dict[int, float] = defaultdict(float)
    for at in copies[inner.in_node[copies]].tolist():
        node = int(calls.rows[calls.of[inner.rows[at]]])
        found[maker_of.get(node, -1)] += float(inner.own[at])
    found.pop(-1, None)
    return found


def _accumulated(calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps) -> Counter[_Weight]:
    """How often a gradient of each shape and type was accumulated."""
    found: Counter[_Weight] = Counter()
    for row in inner.rows[inner.named(_ACCUMULATES)].tolist():
        if tensors := arguments(row):
            found[tensors[0].shape, tensors[0].dtype] += 1
    return found


def _may_be_input(calls: OpCalls, arguments: TensorArgumentReader, one: _Conversion) -> bool:
    """Whether the op that converts has an input of the weight's shape and type, as for a square batch."""
    if calls.names[one.call] in _WRITTEN:
        return False
    tensors = arguments(int(calls.rows[one.call]))
    return bool(tensors) and tensors[0][:2] == one.source[:2]


def _by_weight(
    calls: OpCalls,
    inner: InnerOps,
    found: list[_Conversion],
    gradients: Counter[_Weight],
    backward_ns: dict[int, float],
) -> Iterator[DtypeConversions]:
    sums = KeyedSums()
    lines: dict[tuple[Tensor, str], Counter[Location | None]] = defaultdict(Counter)
    for one, place in zip(found, calls.locations([one.call for one in found]), strict=True):
        key = (one.source._replace(strides=None), one.target.dtype)
        ns = float(inner.own[one.at])
        sums.add(key, ns=ns, backward_ns=backward_ns.get(one.maker, 0.0), count=1)
        lines[key][place] += round(ns)
    for (source, target), total in sums.per_step(calls.steps):
        by_line = lines[source, target]
        yield DtypeConversions(
            source=_NAMES[source.dtype],
            target=_NAMES[target],
            shape=shape_text(source.shape),
            gradients=gradients[source.shape, source.dtype] / calls.steps,
            at=max(by_line, key=lambda at: by_line[at]),
            **total,
        )


def _by_place(
    calls: OpCalls, inner: InnerOps, found: list[_Conversion], backward_ns: dict[int, float]
) -> Iterator[DtypeConversions]:
    sums = KeyedSums()
    for one, place in zip(found, calls.locations([one.call for one in found]), strict=True):
        loss = calls.names[one.call] in _LOSSES
        key = (place, loss, one.source.shape, one.source.dtype, one.target.dtype)
        sums.add(key, ns=float(inner.own[one.at]), backward_ns=backward_ns.get(one.maker, 0.0), count=1)
    for (place, loss, shape, source, target), total in sums.per_step(calls.steps):
        yield DtypeConversions(
            source=_NAMES[source], target=_NAMES[target], shape=shape_text(shape), in_loss=loss, at=place, **total
        )
