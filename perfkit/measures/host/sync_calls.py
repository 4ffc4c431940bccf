"""API calls in which the host waited for the device, by the op and the range that made them."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import find_rows, mask_of, name_codes, nearest_above, outermost_above
from perfkit.measures.results.host import SyncCall
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

#: Calls that return when the device is done. ``cudaEventQuery`` does not wait.
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
    rows = blocking_calls(trace)
    steps = whole_steps(trace)
    if steps.row.size:
        rows = rows[step_of(steps, trace.start_ns[rows]) >= 0]
    if not rows.size:
        return ()
    op = outermost_above(trace, rows, trace.is_kind(Kind.OP))
    around = nearest_above(trace, rows, mask_of(trace, trace.ranges))
    kinds, place, count = np.unique(
        np.stack((trace.name[rows], name_codes(trace, op), name_codes(trace, around))),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    blocked = sum_by(place.ravel(), trace.duration_ns[rows], count.size)
    names = [*trace.names, None]  # the last is what -1 finds
    calls_found = [
        SyncCall(name=trace.names[call], op=names[in_op], range=names[in_range], count=times, blocked_ns=ns)
        for (call, in_op, in_range), times, ns in zip(kinds.T.tolist(), count.tolist(), blocked.tolist(), strict=True)
    ]
    return tuple(sorted(calls_found, key=lambda one: -one.blocked_ns))


def blocking_calls(trace: Trace) -> Ints:
    """Rows of the API calls in which the host waited for the device."""
    reads = find_rows(trace, TO_PAGEABLE, Kind.COPY)
    launches = trace.launch[reads]
    copying = np.intersect1d(launches[launches >= 0], find_rows(trace, ASYNC_COPY, Kind.RUNTIME))
    return np.union1d(find_rows(trace, BLOCKING, Kind.RUNTIME), copying)
