"""Collectives run while kernels compute: nothing waits for them inside a step."""

from __future__ import annotations

import numpy as np

from perfkit.replay._selection import active
from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.trace.intervals import Bools

NAME = "exposed-communication"
TAKES = "nothing"

#: By how much kernels slow down while a collective runs, which takes multiprocessors and memory bandwidth from them: an
#: assumption, which no trace of perfkit's own has confirmed.
SLOWDOWN = 0.2


def describe(_: None) -> str:
    """The change in words."""
    return "collectives overlapped"


def collectives(graph: TaskGraph) -> Bools:
    """The collectives of the steps."""
    return active(graph).tasks & graph.tasks.communicates


def change(graph: TaskGraph, times: TaskTimes, _: None, interference: bool) -> None:
    """No stream and no call waits for a collective; with interference kernels are slower while collectives run."""
    tasks, talks = graph.tasks, collectives(graph)
    computes = active(graph).tasks & ~tasks.communicates
    if interference and computes.any():
        share = min(1.0, float(times.work[talks].sum()) / max(1, int(times.work[computes].sum())))
        exposed = float(times.work[talks].sum())
        slower = min(SLOWDOWN * share, exposed / max(1, int(times.work[computes].sum())))
        times.work[computes] += np.floor(times.work[computes] * slower).astype(np.int64)
    # What a collective's stream shares with kernels cannot overlap there: it moves to a stream of its own.
    moved = talks & np.isin(tasks.queue, np.unique(tasks.queue[computes]))
    for column in (times.work, times.gap, times.unknown):
        column[moved] = 0
    times.holds &= ~talks[graph.waits.source]


def applies(graph: TaskGraph) -> bool:
    """Whether the trace has collectives on a device."""
    return bool(collectives(graph).any())
