"""Attention that is written out: a product, a softmax and a product, as one fused op computes them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from perfkit._location import Location
from perfkit.measures.ops._op_calls import Calls
from perfkit.measures.ops._op_names import VIEWS, named
from perfkit.measures.ops._op_work import SIZES
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader, shape_text
from perfkit.measures.results.patterns import UnfusedAttention

PRODUCTS = named("matmul bmm baddbmm einsum")
SOFTMAX = named("softmax _softmax special_softmax")
#: What stands between the products of an attention reads its scores or makes its mask; a layer is none of it.
_LAYER = re.compile(r"^aten::(?:linear|addmm|conv|_conv|\w+_norm|embedding|lstm|gru|rnn|cross_entropy|scaled_dot)")
#: Ops between a product and the softmax: a scale, a bias, a mask, and what makes them.
NEAR = 12
_MASKING = re.compile(r"masked_fill|where|tril|triu")


def find_attention(calls: Calls, given: TensorArgumentReader) -> Iterator[UnfusedAttention]:
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
    at_line: dict[Location | None, int] = defaultdict(int)
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
        yield UnfusedAttention(
            ops=ops,
            count=len(groups) / calls.steps,
            ns=int(calls.cost[every].sum()) // calls.steps,
            backward_ns=int(calls.node_cost[every].sum()) // calls.steps,
            matmuls_ns=int(calls.cost[products].sum()) // calls.steps,
            matmuls_backward_ns=int(calls.node_cost[products].sum()) // calls.steps,
            lines_ns=sum(at_line[one] for one in {every_place[i] for i in every}) // calls.steps,
            masked=any(_MASKING.search(name) for name in ops),
            at=place,
            scores_bytes=scores_bytes,
            # The scores are among the inputs of the second product.
            inputs_bytes=max(0, sum(sizes) - scores_bytes) if scores_bytes is not None else None,
            shape=shape_text(shape) if shape is not None else None,
        )


def _near(names: list[str], places: Iterable[int]) -> int | None:
    """The nearest product, with no layer or other softmax before it."""
    for at in places:
        if names[at] in PRODUCTS:
            return at
        if names[at] in SOFTMAX or _LAYER.match(names[at]):
            return None
    return None
