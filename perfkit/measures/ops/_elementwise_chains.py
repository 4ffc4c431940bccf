"""Elementwise ops in a row, each of which reads and writes what the next one reads again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from perfkit._location import Location
from perfkit.measures.ops._op_calls import Calls
from perfkit.measures.ops._op_names import VIEWS, named, plain_name
from perfkit.measures.ops._op_work import SIZES
from perfkit.measures.ops._tensor_arguments import SMALL, TensorArgumentReader, TensorArguments, shape_text
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


#: Ops in a row that make a chain: two are what most models hold (add and activation), and little to gain.
LEAST_IN_CHAIN = 3


def find_chains(calls: Calls, given: TensorArgumentReader) -> Iterator[ElementwiseChain]:
    """Neighbours that are elementwise over the same number of elements."""
    chains: list[tuple[list[int], TensorArguments]] = []
    run: list[int] = []
    of_run: TensorArguments | None = None
    elementwise = {name for name in calls.trace.names if plain_name(name) in SIMPLE or plain_name(name) in FUNCTIONS}

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
        got = given(int(calls.rows[index])) if name in elementwise else None
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
    by_place: dict[Any, list[tuple[list[int], TensorArguments]]] = defaultdict(list)
    for (members, got), first in zip(chains, calls.places([members[0] for members, _ in chains]), strict=True):
        names = tuple(calls.name(i) for i in members)
        by_place[first, names, got.shapes[got.largest()], got.dtypes[got.largest()]].append((members, got))
    for (_, names, shape, dtype), groups in by_place.items():
        every = [i for members, _ in groups for i in members]
        by_line: dict[Location | None, int] = defaultdict(int)
        for i, at in zip(every, calls.places(every), strict=True):
            by_line[at] += int(calls.whole_cost[i])
        place = max(by_line, key=lambda one: by_line[one])
        functions = [i for i in every if plain_name(calls.name(i)) in FUNCTIONS]
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
            shape=shape_text(shape),
            dtype=dtype,
            at=place,
        )


def _large_bytes(got: TensorArguments | None, size: int) -> int:
    """Bytes of the tensors that are as large as the result."""
    if got is None:
        return 0
    sizes = [math.prod(shape) * SIZES[dtype] for shape, dtype in zip(got.shapes, got.dtypes, strict=True)]
    return sum(one for one in sizes if 2 * one > size)
