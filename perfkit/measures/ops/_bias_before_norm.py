"""Biases of convolutions that a batch norm subtracts again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from perfkit.measures._rows import launched_work
from perfkit.measures.device._kernel_classes import class_of
from perfkit.measures.ops._inner_ops import KeyedSums
from perfkit.measures.ops._op_arguments import Tensor
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._op_names import VIEWS
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader
from perfkit.measures.results.patterns import BiasBeforeNorm
from perfkit.trace.columns import Kind

_CONVOLUTION = re.compile(r"^aten::conv(?:olution|[123]d)$")
#: A batch norm in training counts its batches first: `num_batches_tracked.add_(1)`.
_COUNTS = "aten::add_"
_BATCH_NORM = re.compile(r"^aten::(?:_?batch_norm\w*|native_batch_norm|cudnn_batch_norm|miopen_batch_norm)$")


def find_biases(calls: OpCalls, arguments: TensorArgumentReader) -> Iterator[BiasBeforeNorm]:
    """Convolutions with a bias right before a batch norm, and the kernels that add it and sum its gradient."""
    order = [
        i
        for i in calls.forward.tolist()
        if calls.names[i] not in VIEWS and not (calls.names[i] == _COUNTS and _counts(arguments(int(calls.rows[i]))))
    ]
    chosen = []
    for index, following in pairwise(order):
        if not _CONVOLUTION.match(calls.names[index]) or not _BATCH_NORM.match(calls.names[following]):
            continue
        tensors = arguments(int(calls.rows[index]))
        # Input, weight, bias: an absent bias has no type.
        if len(tensors) >= 3 and len(tensors[2].shape) == 1 and tensors[2].elements > 1:
            chosen.append(index)
    if not chosen:
        return
    spent = _bias_kernels(calls, set(chosen))
    sums = KeyedSums()
    for index, at in zip(chosen, calls.locations(chosen), strict=True):
        sums.add(at, ns=float(spent.get(index, 0)), count=1)
    for at, total in sums.per_step(calls.steps):
        yield BiasBeforeNorm(at=at, **total)


def _counts(tensors: Sequence[Tensor]) -> bool:
    """Whether an addition is to a single number."""
    return bool(tensors) and all(one.elements == 1 for one in tensors)


def _bias_kernels(calls: OpCalls, convolutions: set[int]) -> dict[int, int]:
    """By convolution: time of its elementwise kernels (adding the bias) and of its node's reductions (the gradient)."""
    trace = calls.trace
    work = launched_work(trace)
    work = work[trace.kind[work] == Kind.KERNEL]
    index = calls.of[trace.launch[work]]
    found: dict[int, int] = defaultdict(int)
    classes: dict[int, str] = {}
    for row, at in zip(work[index >= 0].tolist(), index[index >= 0].tolist(), strict=True):
        is_node = bool(calls.is_node[at])
        maker = int(calls.maker[at]) if is_node else at
        if maker not in convolutions:
            continue
        code = int(trace.name[row])
        kind = classes.setdefault(code, class_of(trace.names[code]))
        if kind == ("reduction" if is_node else "elementwise"):
            found[maker] += int(trace.duration_ns[row])
    return found
