"""Elementwise ops in a row, each of which reads from memory what the one before it wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfkit._location import Location
from perfkit.measures.ops._op_arguments import Tensor
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._op_names import VIEWS, named, plain_name
from perfkit.measures.ops._tensor_arguments import SMALL, TensorArgumentReader, shape_text
from perfkit.measures.results.patterns import ElementwiseChain

#: One pass over their tensors each, little arithmetic.
SIMPLE = named(
    "add sub rsub mul div neg abs reciprocal clamp clamp_min clamp_max relu where masked_fill addcmul addcdiv lerp",
    "maximum minimum true_divide multiply square threshold eq ne lt le gt ge logical_and logical_or logical_not",
    "bitwise_not sign sgn dropout feature_dropout hardtanh relu6 leaky_relu",
)
#: Each element costs a function of many instructions, which fusing does not save.
FUNCTIONS = named(
    "exp log log1p expm1 sqrt rsqrt pow sin cos tan erf sigmoid tanh silu gelu elu softplus mish selu celu log_sigmoid",
    "hardswish hardsigmoid atan exp2 log2 log10",
)

#: Ops in a row that make a chain: two are what most models hold (add and activation), with little to save.
MIN_IN_CHAIN = 3


def find_chains(calls: OpCalls, arguments: TensorArgumentReader) -> Iterator[ElementwiseChain]:
    """Neighbours that are elementwise over the same number of elements."""
    chains = list(_chains(calls, arguments))
    groups: dict[tuple[Location | None, tuple[str, ...], Tensor], list[list[int]]] = defaultdict(list)
    first_lines = calls.locations([members[0] for members, _ in chains])
    for (members, result), first in zip(chains, first_lines, strict=True):
        names = tuple(calls.names[i] for i in members)
        groups[first, names, result._replace(strides=None)].append(members)
    for (_, names, result), found in groups.items():
        every = [i for members in found for i in members]
        by_line: dict[Location | None, int] = defaultdict(int)
        for i, line in zip(every, calls.locations(every), strict=True):
            by_line[line] += int(calls.whole_cost[i])
        # Of tensors that are broadcast, those as large as the result count.
        size = result.bytes
        sizes = (tensor.bytes for row in calls.rows[every].tolist() for tensor in arguments(row))
        read = sum(one for one in sizes if 2 * one > size)
        longest = sum(int(calls.cost[members].max()) + int(calls.node_cost[members].max()) for members in found)
        yield ElementwiseChain(
            ops=names,
            count=len(found) / calls.steps,
            ns=calls.per_step(calls.cost, every),
            backward_ns=calls.per_step(calls.node_cost, every),
            longest_ns=longest // calls.steps,
            functions_ns=calls.per_step(
                calls.whole_cost, [i for i in every if plain_name(calls.names[i]) in FUNCTIONS]
            ),
            bytes=(read + len(every) * size) // calls.steps,
            # Each result but the last is written, and read by the next op.
            avoided_bytes=2 * size * (len(every) - len(found)) // calls.steps,
            shape=shape_text(result.shape),
            dtype=result.dtype,
            at=max(by_line, key=lambda one: by_line[one]),
        )


def _chains(calls: OpCalls, arguments: TensorArgumentReader) -> Iterator[tuple[list[int], Tensor]]:
    """The calls of each chain, with the largest tensor of its last one."""
    elementwise = {name for name in calls.trace.names if plain_name(name) in SIMPLE | FUNCTIONS}
    run: list[int] = []
    last: Tensor | None = None
    for index in [*calls.forward.tolist(), -1]:
        name = calls.names[index] if index >= 0 else ""
        if name in VIEWS:
            continue
        tensors = arguments(int(calls.rows[index])) if name in elementwise else ()
        largest = max(tensors, key=lambda tensor: tensor.elements, default=None)
        if largest is not None and largest.bytes < SMALL:
            continue  # ops on small tensors (a mask, a scale) stand between those of a chain
        if last is not None and (largest is None or largest.elements != last.elements):
            # The same op again and again is many tensors, each on its own.
            if len(run) >= MIN_IN_CHAIN and len({calls.names[i] for i in run}) > 1:
                yield run, last
            run, last = [], None
        if largest is not None:
            run.append(index)
            last = largest
