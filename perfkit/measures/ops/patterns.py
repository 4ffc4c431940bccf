"""Ops that belong together: attention written out, elementwise ops in a row, copies to another layout, wide types.

What the order of the ops cannot tell, types and shapes do: they are in a trace recorded with ``record_shapes``, as the
step for lines is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perfkit.measures.ops._conversions import find_layout_copies, find_wide_types
from perfkit.measures.ops._elementwise_chains import find_chains
from perfkit.measures.ops._inner_ops import InnerOps
from perfkit.measures.ops._matmul_shapes import find_biased, find_products
from perfkit.measures.ops._op_calls import Calls, TypicalTimes
from perfkit.measures.ops._optimizer_updates import measure_collectives, measure_updates
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader
from perfkit.measures.ops._unfused_attention import find_attention
from perfkit.measures.results.patterns import Patterns
from perfkit.run.records import LineTimes, TracedLine
from perfkit.trace.columns import Trace

#: Rows of each sort that are kept, longest first.
MOST = 50


def measure_patterns(
    trace: Trace,
    times: LineTimes | None = None,
    traced: Sequence[TracedLine] = (),
    typical: TypicalTimes | None = None,
) -> Patterns | None:
    """Patterns in the ops of a trace; None where it has no ops.

    Args:
        trace: Best with shapes, and with Python frames (lines): see `perfkit.measures.host._python_frames.with_frames`.
        times: As for `perfkit.measures.host.source_lines.measure_source_lines`.
        traced: Likewise.
        typical: Times of the same calls in other steps, which are then taken; of this trace itself by default.
    """
    calls = Calls(trace, times, traced, typical)
    if not calls.rows.size:
        return None
    inner = InnerOps(calls)
    given = TensorArgumentReader(trace, inner.rows)
    return Patterns(
        source=trace.path.name,
        steps=calls.steps,
        step_ns=calls.step_ns,
        has_shapes=given.any,
        attention=_longest(find_attention(calls, given)),
        chains=_longest(find_chains(calls, given)) if given.any else (),
        layout=_longest(find_layout_copies(calls, given, inner)) if given.any else (),
        dtypes=_longest(find_wide_types(calls, given, inner)) if given.any else (),
        matmuls=_longest(find_products(calls, given, inner)) if given.any and calls.on_device else (),
        biases=tuple(find_biased(calls, given)) if given.any and calls.on_device else (),
        updates=measure_updates(calls),
        collectives=measure_collectives(calls, typical),
    )


def _longest(found: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(found, key=lambda one: -(one.ns + getattr(one, "backward_ns", 0)))[:MOST])
