"""Gradients that are averaged between ranks in every backward of an update, although only the last one needs it."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._rows import find_rows, time_of
from perfkit.measures.ops._host_collectives import BEGINS, RUNNING, share_of_waiting
from perfkit.measures.results.patterns import RepeatedReductions
from perfkit.measures.steps._trace_steps import OPTIMIZER, whole_steps
from perfkit.trace.columns import Kind, ProfilerSteps, Trace
from perfkit.trace.intervals import Ints, clip

#: torch's range around the forward of a model whose gradients it averages.
_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
_ALL_REDUCE = re.compile(r"^c10d::allreduce_$")


def measure_repeated_reductions(trace: Trace) -> RepeatedReductions | None:
    """Averages of gradients that a later backward of the same update repeats; None without any, or with a device.

    Each of a step's forwards under DistributedDataParallel is followed by equally many all-reduces, those of its
    backward, and one optimizer step ends them all.
    """
    steps = whole_steps(trace)
    if trace.device_rows.size or not steps.row.size:
        return None
    forwards, reductions, updates = (
        _starts(trace, steps, pattern, kind)
        for pattern, kind in ((_FORWARD, Kind.RANGE), (_ALL_REDUCE, Kind.OP), (OPTIMIZER, Kind.RANGE))
    )
    found = set()
    for start, end in zip(steps.start_ns, steps.end_ns, strict=True):
        of_step = [times[(times >= start) & (times < end)] for times in (forwards, reductions, updates)]
        # The all-reduces after each forward; what comes before the first (a metric) is of no backward.
        each = np.bincount(np.searchsorted(of_step[0], of_step[1], side="right"), minlength=of_step[0].size + 1)[1:]
        if of_step[2].size != 1 or each.size < 2 or each.min() != each.max() or not each[0]:
            return None
        found.add((each.size, int(each[0])))
    if len(found) != 1:
        return None
    ((backwards, count),) = found
    repeated = (backwards - 1) / backwards
    return RepeatedReductions(
        backwards=backwards,
        count=backwards * count,
        waited_share=repeated * share_of_waiting(trace, steps.row.size),
        running_share=repeated * _running_share(trace, steps),
    )


def _starts(trace: Trace, steps: ProfilerSteps, pattern: re.Pattern[str], kind: Kind) -> Ints:
    """When rows of this name begin on the thread of the steps, in order."""
    rows = find_rows(trace, pattern, kind)
    return np.sort(trace.start_ns[rows[trace.track[rows] == steps.track[0]]])


def _running_share(trace: Trace, steps: ProfilerSteps) -> float:
    """The share of a step (median) in which a collective ran or began, whatever the thread that trains did."""
    rows = np.concatenate((find_rows(trace, RUNNING, Kind.RANGE), find_rows(trace, BEGINS, Kind.OP)))
    talking = time_of(trace, rows)
    each = [
        clip(talking, int(low), int(high)).length_ns / max(1, high - low)
        for low, high in zip(steps.start_ns, steps.end_ns, strict=True)
    ]
    return float(np.median(each))
