"""Embedding tables whose gradients are as large as they are, though a batch looks up few of their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfkit._location import Location
from perfkit.measures.ops._inner_ops import InnerOps
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader
from perfkit.measures.results.patterns import EmbeddingGradient

#: It fills a gradient of the whole table with zeros, and adds the rows that were looked up.
_DENSE = frozenset({"aten::embedding_dense_backward"})
_FORWARD = frozenset({"aten::embedding"})


def find_embedding_gradients(
    calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps
) -> Iterator[EmbeddingGradient]:
    """The lookups with a dense gradient, by line and by the shape of the table."""
    dense = inner.named(_DENSE)
    callers = set(inner.caller[dense[inner.in_node[dense]]].tolist()) - {-1}
    forward = inner.named(_FORWARD)
    forward = forward[~inner.in_node[forward]]
    looked_up: dict[tuple[Location | None, int, int], float] = defaultdict(float)
    times: dict[tuple[Location | None, int, int], float] = defaultdict(float)
    for at, index in zip(inner.locations(forward), forward.tolist(), strict=True):
        caller = int(inner.caller[index])
        tensors = arguments(int(inner.rows[index]))
        if caller not in callers or len(tensors) < 2 or len(tensors[0].shape) != 2:
            continue
        rows, columns = tensors[0].shape
        looked_up[at, rows, columns] += tensors[1].elements
        times[at, rows, columns] += float(calls.node_cost[caller])
    for (at, rows, columns), number in looked_up.items():
        yield EmbeddingGradient(
            rows=rows,
            columns=columns,
            looked_up=number / calls.steps,
            ns=round(times[at, rows, columns] / calls.steps),
            at=at,
        )
