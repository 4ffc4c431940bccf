"""On a device: matrix products by their shapes, and biases that a batch norm takes away again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from perfkit._location import Location
from perfkit.measures.device._kernel_classes import class_of
from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_calls import Calls
from perfkit.measures.ops._op_names import VIEWS
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader
from perfkit.measures.results.patterns import BiasBeforeNorm, MatmulShape
from perfkit.trace.columns import Kind

_MATMULS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


def find_products(calls: Calls, given: TensorArgumentReader, inner: InnerOps) -> Iterator[MatmulShape]:
    """Matrix products by shape and type, with the device time of their kernels."""
    trace = calls.trace
    chosen = inner.named(trace, _MATMULS)
    places = inner.places(calls, chosen)
    sums = KeyedSums()
    where: dict[Any, Location | None] = {}
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
        yield MatmulShape(
            op=op,
            m=m,
            k=k,
            n=n,
            dtype=dtype,
            count=total["count"] / calls.steps,
            ns=round(total["ns"] / calls.steps),
            at=where.get((op, m, k, n, dtype)),
        )


_CONVOLUTION = re.compile(r"^aten::conv(?:olution|[123]d)$")
_BATCH_NORM = re.compile(r"^aten::(?:_?batch_norm\w*|native_batch_norm|cudnn_batch_norm|miopen_batch_norm)$")


def find_biased(calls: Calls, given: TensorArgumentReader) -> Iterator[BiasBeforeNorm]:
    """Convolutions with a bias right before a batch norm, and the kernels that add it and sum its gradient."""
    order = [i for i in calls.forward.tolist() if calls.name(i) not in VIEWS]
    convolutions = {name for name in calls.trace.names if _CONVOLUTION.match(name)}
    chosen = []
    for index, following in pairwise(order):
        if calls.name(index) not in convolutions or not _BATCH_NORM.match(calls.name(following)):
            continue
        got = given(int(calls.rows[index]))
        # Input, weight, bias: an absent bias has no type.
        if got is not None and len(got.shapes) >= 3 and len(got.shapes[2]) == 1 and got.shapes[2][0] > 1:
            chosen.append(index)
    if not chosen:
        return
    spent = _bias_kernels(calls, chosen)
    sums = KeyedSums()
    for index, place in zip(chosen, calls.places(chosen), strict=True):
        sums.add(place, ns=float(spent.get(index, 0)), count=1)
    for place, total in sums.by.items():
        yield BiasBeforeNorm(count=total["count"] / calls.steps, ns=round(total["ns"] / calls.steps), at=place)


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
