"""API calls in which the host waited for the device, by the op and the range that made them."""

from __future__ import annotations

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import mask_of, name_codes, nearest_above, outermost_above
from perfkit.measures.device._device_work import device_work
from perfkit.measures.device._idle import CODE, idle_of_devices
from perfkit.measures.device._idle_places import functions_of
from perfkit.measures.host._blocking_calls import blocking_calls, wait_times
from perfkit.measures.results.host import SyncCall
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, covered_before, union


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
    functions, function = functions_of(trace, rows)
    idle = sum_by(place, _idle(trace, rows), count.size)
    on_device = bool(trace.device_rows.size)
    names = [*trace.names, None]  # the last is what -1 finds
    calls_found = [
        SyncCall(
            name=trace.names[call],
            op=names[in_op],
            range=names[in_range],
            count=int(count[i]),
            blocked_ns=int(blocked[i]),
            at=functions[int(np.bincount(function[place == i]).argmax())],
            idle_ns=int(idle[i]) if on_device else None,
        )
        for i, (call, in_op, in_range) in enumerate(kinds.T.tolist())
    ]
    return tuple(sorted(calls_found, key=lambda one: -one.blocked_ns))


def _idle(trace: Trace, rows: Ints) -> Ints:
    """How long the device was idle because of each of these calls: in it, and until the next launch."""
    waits = wait_times(trace)
    found = np.zeros(len(trace), np.int64)
    for work, idle in zip(device_work(trace), idle_of_devices(trace), strict=True):
        synced = idle.pieces.cause == CODE["sync"]
        pieces = union(idle.pieces.starts[synced], idle.pieces.ends[synced])
        mine = waits.device == work.device
        calls, until = waits.rows[mine], waits.until[mine]
        found[calls] = covered_before(pieces, until) - covered_before(pieces, trace.start_ns[calls])
    return found[rows]
