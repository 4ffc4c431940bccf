"""How long the calls, the optimizers and the waits of a typical step take: the shortest times over a trace's steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures.ops._host_collectives import share_of_waiting
from perfkit.measures.ops._op_calls import OpCalls, TypicalTimes, called_ops, calls_by_name
from perfkit.measures.ops._optimizer_updates import shares_of_updates
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.run.records import LineTimes, TracedLine
from perfkit.trace.columns import Trace


def op_calls(
    trace: Trace,
    times: LineTimes | None = None,
    traced: Sequence[TracedLine] = (),
    typical: TypicalTimes | None = None,
) -> OpCalls:
    """The op calls of a trace, with the times of a typical step.

    Args:
        trace: Best with shapes, and with Python frames: see `perfkit.measures.host._python_frames.with_frames`.
        times: As for `perfkit.measures.host.source_lines.measure_source_lines`.
        traced: Likewise.
        typical: Times of the same calls in other steps, which are then used; by default those of this trace.
    """
    return OpCalls(trace, typical or typical_times(trace), times, traced)


def typical_times(trace: Trace) -> TypicalTimes:
    """The times of a typical step of this trace."""
    rows, step, steps = called_ops(trace)
    duration = trace.duration_ns[rows]
    calls: dict[str, list[float]] = {}
    for name, places in calls_by_name(trace, rows, step).items():
        if len(places) == steps and len({len(in_step) for in_step in places}) == 1:
            calls[name] = np.stack([duration[in_step] for in_step in places]).min(axis=0).tolist()
        else:
            calls[name] = [float(np.median(duration[np.concatenate(places)]))]
    whole = whole_steps(trace)
    outside = 0.0
    if whole.row.size:
        mine = trace.track[rows] == whole.track[0]
        inside = sum_by(step[mine], duration[mine], whole.row.size)[:steps]
        outside = float(np.maximum(0, (whole.end_ns - whole.start_ns)[:steps] - inside).min())
    return TypicalTimes(calls, outside, shares_of_updates(trace, steps), share_of_waiting(trace, steps))
