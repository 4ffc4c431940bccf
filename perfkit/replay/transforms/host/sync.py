"""The host no longer waits for the device: no item(), no printing of tensors, no synchronize()."""

from __future__ import annotations

import numpy as np

from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.trace.intervals import Bools

NAME = "sync"
TAKES = "nothing"


def describe(_: None) -> str:
    """The change in words."""
    return "without syncs"


def syncs_of(graph: TaskGraph) -> Bools:
    """Which waits are those of calls inside the steps."""
    return (graph.waits.task < 0) & (graph.wait_step >= 0)


def without_calls(graph: TaskGraph, times: TaskTimes, waits: Bools) -> None:
    """Take the time of the calls themselves out."""
    lanes = graph.lanes
    called = np.zeros(len(graph.trace), bool)
    called[graph.waits.row[waits]] = True
    times.host[(lanes.row >= 0) & called[lanes.row] & (graph.piece_step >= 0)] = 0


def change(graph: TaskGraph, times: TaskTimes, _: None, interference: bool) -> None:
    """The waits are gone; with interference the calls stay."""
    waits = syncs_of(graph)
    times.holds &= ~waits
    if not interference:
        without_calls(graph, times, waits)


def applies(graph: TaskGraph) -> bool:
    """Whether the host waits for a device inside the steps."""
    return bool((syncs_of(graph) & graph.recorded.holds).any())
