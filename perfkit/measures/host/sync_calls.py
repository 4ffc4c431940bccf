"""API calls in which the host waited for the device, by the op and the range that made them."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import find_rows, launched_work, mask_of, name_codes, nearest_above, outermost_above
from perfkit.measures.device._device_work import device_work
from perfkit.measures.device._idle import CODE, idle_of_devices
from perfkit.measures.results.device import LATE_LAUNCHES
from perfkit.measures.results.host import SyncCall
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, covered_before, union

#: Calls that return when the device is done. ``cudaEventQuery`` does not wait.
BLOCKING = re.compile(
    r"(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize|(?:cuda|hip)Memcpy(?:2D|3D)?$|hipMemcpyWithStream$"
    r"|cuMemcpy(?:DtoH|HtoD)(?:_v\d+)?$"
)
#: An async copy to or from pageable memory waits as well: the runtime copies through a buffer of its own.
ASYNC_COPY = re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")
TO_PAGEABLE = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")

#: Idle time that a sync can be the cause of.
_AFTER_A_SYNC = np.array([CODE[cause] for cause in ("sync", *LATE_LAUNCHES)])


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
    place = place.ravel()
    blocked = sum_by(place, trace.duration_ns[rows], count.size)
    idle, inside = (sum_by(place, of_call, count.size) for of_call in _idle(trace, rows))
    on_device = bool(trace.device_rows.size)
    names = [*trace.names, None]  # the last is what -1 finds
    calls_found = [
        SyncCall(
            name=trace.names[call],
            op=names[in_op],
            range=names[in_range],
            count=int(count[i]),
            blocked_ns=int(blocked[i]),
            idle_ns=int(idle[i]) if on_device else None,
            idle_inside_ns=int(inside[i]) if on_device else None,
        )
        for i, (call, in_op, in_range) in enumerate(kinds.T.tolist())
    ]
    return tuple(sorted(calls_found, key=lambda one: -one.blocked_ns))


def blocking_calls(trace: Trace) -> Ints:
    """Rows of the API calls in which the host waited for the device."""
    reads = find_rows(trace, TO_PAGEABLE, Kind.COPY)
    launches = trace.launch[reads]
    copying = np.intersect1d(launches[launches >= 0], find_rows(trace, ASYNC_COPY, Kind.RUNTIME))
    return np.union1d(find_rows(trace, BLOCKING, Kind.RUNTIME), copying)


def _idle(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """For each of these calls how long the device of the next launch was idle until that launch, and within the call.

    Only time in which the host waited or had not launched counts: a batch that is loaded meanwhile is another cause.
    The time after a call ends where the next call begins.
    """
    total, inside = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
    work = launched_work(trace)
    launch, first = np.unique(trace.launch[work], return_index=True)
    order = np.argsort(trace.start_ns[launch], kind="stable")
    starts, device = trace.start_ns[launch][order], trace.device[work[first]][order]
    if not rows.size or not starts.size:
        return total, inside
    by_start = np.argsort(trace.start_ns[rows], kind="stable")
    begin, end = trace.start_ns[rows[by_start]], trace.end_ns[rows[by_start]]
    at = np.searchsorted(starts, end, side="left")
    until = np.where(at < starts.size, starts[np.minimum(at, starts.size - 1)], end)
    # At the end of the recording the device of the launch before counts.
    on = device[np.minimum(at, starts.size - 1)]
    until = np.minimum(until, np.append(begin[1:], np.iinfo(np.int64).max))
    for one, idle in zip(device_work(trace), idle_of_devices(trace), strict=True):
        late = np.isin(idle.pieces.cause, _AFTER_A_SYNC)
        pieces = union(idle.pieces.starts[late], idle.pieces.ends[late])
        mine = on == one.device
        low = covered_before(pieces, begin[mine])
        total[by_start[mine]] = covered_before(pieces, until[mine]) - low
        inside[by_start[mine]] = covered_before(pieces, np.minimum(end, until)[mine]) - low
    return total, inside
