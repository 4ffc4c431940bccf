"""Ops that have a faster form: attention written out, elementwise chains, layout copies, wide dtypes.

Types and shapes show what the order of ops does not: they are in a trace recorded with ``record_shapes``, as the step
for lines is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfkit.measures.ops._bias_before_norm import find_biases
from perfkit.measures.ops._dtype_conversions import find_conversions
from perfkit.measures.ops._elementwise_chains import find_chains
from perfkit.measures.ops._embedding_gradients import find_embedding_gradients
from perfkit.measures.ops._host_collectives import find_host_collectives
from perfkit.measures.ops._indexing_gradients import find_indexing_gradients
from perfkit.measures.ops._inner_ops import InnerOps
from perfkit.measures.ops._layout_copies import find_layout_copies
from perfkit.measures.ops._matmul_shapes import find_matmuls
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._optimizer_updates import find_updates
from perfkit.measures.ops._repeated_forwards import find_repeated_forwards
from perfkit.measures.ops._retained_graphs import find_retained_graph
from perfkit.measures.ops._slice_writes import find_slice_writes
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader
from perfkit.measures.ops._unfused_attention import find_attention
from perfkit.measures.ops._wide_dtypes import find_wide_dtypes
from perfkit.measures.results.patterns import Patterns

#: Rows of each kind that are kept, longest first.
MAX_ROWS = 50


def measure_patterns(calls: OpCalls) -> Patterns | None:
    """Patterns in the ops of a trace, which best has shapes and Python frames; None where it has no ops."""
    if not calls.rows.size:
        return None
    inner = InnerOps(calls)
    arguments = TensorArgumentReader(calls)
    shapes = arguments.any
    return Patterns(
        source=calls.trace.path.name,
        steps=calls.steps,
        step_ns=calls.step_ns,
        has_shapes=shapes,
        attention=_longest(find_attention(calls, arguments)),
        chains=_longest(find_chains(calls, arguments)) if shapes else (),
        layout=_longest(find_layout_copies(calls, arguments, inner)) if shapes else (),
        conversions=_longest(find_conversions(calls, arguments, inner)) if shapes and calls.on_device else (),
        dtypes=_longest(find_wide_dtypes(calls, arguments, inner)) if shapes else (),
        matmuls=_longest(find_matmuls(calls, arguments, inner)) if shapes and calls.on_device else (),
        biases=tuple(find_biases(calls, arguments)) if shapes and calls.on_device else (),
        indexing=_longest(find_indexing_gradients(calls, arguments, inner)) if shapes else (),
        repeated=find_repeated_forwards(calls),
        retained=find_retained_graph(calls),
        slice_writes=find_slice_writes(calls),
        tables=_longest(find_embedding_gradients(calls, arguments, inner)) if shapes else (),
        updates=find_updates(calls, calls.typical.updates),
        collectives=find_host_collectives(calls, calls.typical.waited),
    )


def _longest(found: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(found, key=lambda one: -(one.ns + getattr(one, "backward_ns", 0)))[:MAX_ROWS])
