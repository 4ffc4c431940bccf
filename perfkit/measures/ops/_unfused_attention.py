"""Attention written out as a product, a softmax and a product, instead of one fused op."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import prod

from perfkit._location import Location
from perfkit.measures.ops._op_arguments import Tensor
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._op_names import VIEWS, named
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader, shape_text
from perfkit.measures.results.patterns import UnfusedAttention

_EINSUM, _WITH_SUMMAND = named("einsum"), named("baddbmm")
MATMULS = named("matmul bmm baddbmm einsum")
SOFTMAX = named("softmax _softmax special_softmax")
#: Between the products of an attention stand ops that read its scores or make its mask, but no layer.
_LAYER = re.compile(r"^aten::(?:linear|addmm|conv|_conv|\w+_norm|embedding|lstm|gru|rnn|cross_entropy|scaled_dot)")
#: Ops between a product and the softmax: a scale, a bias, a mask, and what makes them.
NEAR = 12
#: From this share of the scores on, a product is what they are made of: the rest may be a column for "none of them", a
#: memory, or places beyond a window.
_OF_SCORES = 0.5
_MASKING = re.compile(r"masked_fill|where|tril|triu")


def find_attention(calls: OpCalls, arguments: TensorArgumentReader) -> Iterator[UnfusedAttention]:
    """A product that makes scores, then their softmax and a product near it, with no layer between them."""
    order = [i for i in calls.forward.tolist() if calls.names[i] not in VIEWS]
    names = [calls.names[i] for i in order]
    softmaxes = []
    for at, name in enumerate(names):
        if name not in SOFTMAX:
            continue
        before = _near(names, range(at - 1, max(-1, at - 1 - NEAR), -1), _MakesScores(calls, arguments, order, at))
        after = _near(names, range(at + 1, min(len(names), at + 1 + NEAR)))
        if before is not None and after is not None:
            softmaxes.append((order[at], order[before : after + 1]))
    if not softmaxes:
        return
    location = dict(zip(calls.forward.tolist(), calls.locations(calls.forward), strict=True))
    line_ns: dict[Location | None, int] = defaultdict(int)
    for i, line in location.items():
        line_ns[line] += int(calls.whole_cost[i])
    found: dict[tuple[Location | None, tuple[str, ...], Tensor | None], list[list[int]]] = defaultdict(list)
    for softmax, members in softmaxes:
        inputs = arguments(int(calls.rows[softmax]))
        scores = inputs[0]._replace(strides=None) if inputs else None
        found[location[softmax], tuple(calls.names[i] for i in members), scores].append(members)
    for (line, ops, scores), groups in found.items():
        matmuls = [i for members in groups for i in (members[0], members[-1])]
        every = [i for members in groups for i in members]
        ends = calls.rows[[groups[0][0], groups[0][-1]]].tolist()
        inputs_bytes = sum(tensor.bytes for row in ends for tensor in arguments(row))
        yield UnfusedAttention(
            ops=ops,
            count=len(groups) / calls.steps,
            ns=calls.per_step(calls.cost, every),
            backward_ns=calls.per_step(calls.node_cost, every),
            matmuls_ns=calls.per_step(calls.cost, matmuls),
            matmuls_backward_ns=calls.per_step(calls.node_cost, matmuls),
            lines_ns=sum(line_ns[one] for one in {location[i] for i in every}) // calls.steps,
            masked=any(_MASKING.search(name) for name in ops),
            at=line,
            scores_bytes=scores.bytes if scores is not None else None,
            # The scores are among the inputs of the second product.
            inputs_bytes=max(0, inputs_bytes - scores.bytes) if scores is not None else None,
            shape=shape_text(scores.shape) if scores is not None else None,
        )


class _MakesScores:
    """Whether a call is the product of queries and keys that a softmax is of, as far as the trace has shapes.

    The scores of a graph's attention are sums of two vectors: a product there has the vectors, and no op for q, k and v
    computes the same.
    """

    def __init__(self, calls: OpCalls, arguments: TensorArgumentReader, order: list[int], softmax: int) -> None:
        self._calls, self._arguments, self._order = calls, arguments, order
        inputs = arguments(int(calls.rows[order[softmax]]))
        self._scores = inputs[0] if inputs else None

    def __call__(self, at: int) -> bool:
        index, scores = self._order[at], self._scores
        factors = self._factors(index)
        if scores is None or factors is None:
            return True
        left, right = (one.shape for one in factors)
        if min(len(left), len(right)) < 2 or prod(left) == left[-1] or prod(right) == right[-2]:
            # One vector for all rows is a layer's weight, and no keys.
            return False
        batch = max(prod(left[:-2]), prod(right[:-2]))
        elements, columns = batch * left[-2] * right[-1], right[-1]
        return elements == scores.elements or (
            elements >= _OF_SCORES * scores.elements
            and any(_OF_SCORES * length <= columns <= length / _OF_SCORES for length in scores.shape[-2:])
        )

    def _factors(self, index: int) -> tuple[Tensor, Tensor] | None:
        """The two factors of a product; None where they are not known."""
        row = int(self._calls.rows[index])
        found = self._arguments(row)
        if self._calls.names[index] in _EINSUM:
            # Its own tensors come in a list; what it multiplies is an op inside of it.
            found = next((self._arguments(one) for one in self._inside(index)), ())
        if self._calls.names[index] in _WITH_SUMMAND:
            found = found[1:]
        return (found[0], found[1]) if len(found) > 1 else None

    def _inside(self, index: int) -> Iterator[int]:
        rows = self._calls.op_rows[self._calls.of[self._calls.op_rows] == index].tolist()
        names = self._calls.trace.names
        yield from (row for row in rows if names[self._calls.trace.name[row]] == "aten::bmm")


def _near(names: list[str], places: Iterable[int], is_meant: Callable[[int], bool] = lambda _: True) -> int | None:
    """The nearest product that is meant, with no layer or other softmax before it."""
    for at in places:
        if names[at] in MATMULS:
            if is_meant(at):
                return at
            continue
        if names[at] in SOFTMAX or _LAYER.match(names[at]):
            return None
    return None
