"""API calls in which the host waited for the device, by the op and the range that made them."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from perfkit.measures.results import SyncCall
from perfkit.measures.steps import step_of, whole_steps
from perfkit.trace.columns import Kind, Trace

#: Calls that return when the device is done. ``cudaEventQuery`` asks and does not wait.
BLOCKING = re.compile(
    r"(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize|(?:cuda|hip)Memcpy(?:2D|3D)?$|hipMemcpyWithStream$"
    r"|cuMemcpy(?:DtoH|HtoD)(?:_v\d+)?$"
)
#: An async copy to or from pageable memory waits as well: the runtime copies through a buffer of its own.
ASYNC_COPY = re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")
TO_PAGEABLE = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")


def measure_sync_calls(trace: Trace) -> tuple[SyncCall, ...]:
    """Blocking calls by name, op and range, longest wait first; inside the steps if the trace has any.

    ``op`` is the outermost op around the call, which is what the user's line called; ``range`` the nearest range.
    """
    calls = trace.is_kind(Kind.RUNTIME)
    blocking = calls & trace.name_matches(BLOCKING)
    reads = np.flatnonzero(trace.is_kind(Kind.COPY) & trace.name_matches(TO_PAGEABLE))
    launches = trace.launch[reads]
    reading = np.zeros(len(trace), bool)
    reading[launches[launches >= 0]] = True
    blocking |= reading & trace.name_matches(ASYNC_COPY)
    rows = np.flatnonzero(blocking)
    steps = whole_steps(trace)
    if steps.row.size:
        rows = rows[step_of(steps, trace.start_ns[rows]) >= 0]
    if not rows.size:
        return ()
    ops = trace.is_kind(Kind.OP)
    op = trace.above(ops & (trace.above(ops) < 0))[rows]
    is_range = np.zeros(len(trace), bool)
    is_range[trace.ranges] = True
    around = trace.above(is_range)[rows]
    found: dict[tuple[str, str | None, str | None], list[int]] = defaultdict(list)

    def name(row: int) -> str | None:
        return trace.names[trace.name[row]] if row >= 0 else None

    for row, in_op, in_range in zip(rows.tolist(), op.tolist(), around.tolist(), strict=True):
        found[trace.names[trace.name[row]], name(in_op), name(in_range)].append(row)
    duration = trace.end_ns - trace.start_ns
    calls_found = [
        SyncCall(name=call, op=in_op, range=in_range, count=len(where), blocked_ns=int(duration[where].sum()))
        for (call, in_op, in_range), where in found.items()
    ]
    return tuple(sorted(calls_found, key=lambda one: -one.blocked_ns))
