"""What a trace contains: its size, its devices, its rank, and what is missing."""

from __future__ import annotations

import numpy as np

from perfkit.measures.results.measurements import TraceFacts
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.trace.columns import Kind, Trace

#: Shapes are recorded for every op or for none; the first few with arguments decide.
SAMPLE = 50


def measure_trace_facts(trace: Trace) -> TraceFacts:
    """What reports print about a trace, and what rules must know before they use its numbers.

    ``span_ns`` reaches from the first to the last event of a thread or a device; the profiler's own
    records, some of which end far too late, do not count.
    """
    parts = [rows for rows in (trace.host_rows, trace.device_rows) if rows.size]
    first = min((int(trace.start_ns[rows].min()) for rows in parts), default=0)
    span_ns = max((int(trace.end_ns[rows].max()) for rows in parts), default=first) - first
    names = {device.id: device.name for device in trace.metadata.devices}
    used = np.unique(trace.device[trace.device_rows]).tolist()
    return TraceFacts(
        path=str(trace.path),
        format=trace.metadata.format,
        events=len(trace),
        device_events=trace.device_rows.size,
        devices=tuple(names.get(device) or f"device {device}" for device in used),
        steps=whole_steps(trace).row.size,
        span_ns=span_ns,
        rank=trace.metadata.rank,
        world_size=trace.metadata.world_size,
        backend=trace.metadata.backend,
        has_stacks=bool(trace.is_kind(Kind.PYTHON).any()),
        has_shapes=_has_shapes(trace),
        lost=trace.lost,
    )


def _has_shapes(trace: Trace) -> bool:
    if trace.metadata.record_shapes is not None:
        return trace.metadata.record_shapes
    ops = np.flatnonzero(trace.is_kind(Kind.OP))[:SAMPLE].tolist()
    return any(args.get("Input Dims") or args.get("Input dims") for args in trace.args(ops))
