"""Collectives transfer F times as fast."""

from __future__ import annotations

import numpy as np

from perfkit.measures.device.communication import waiting_times
from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.replay.transforms.device.exposed_communication import collectives

NAME = "bandwidth"
TAKES = "number"


def describe(factor: float) -> str:
    """The change in words."""
    return f"collectives at {factor:g} times the bandwidth"


def change(graph: TaskGraph, times: TaskTimes, factor: float, interference: bool) -> None:
    """Collectives take the F-th part; with interference only what is transfer, not what is waiting for other ranks."""
    talks = np.flatnonzero(collectives(graph))
    waiting = np.maximum(waiting_times(graph.trace, graph.tasks.row[talks]), 0) if interference else 0
    waiting = np.minimum(waiting, times.work[talks])
    times.work[talks] = waiting + np.rint((times.work[talks] - waiting) / factor).astype(np.int64)


def applies(graph: TaskGraph) -> bool:
    """Whether the trace has collectives on a device."""
    return bool(collectives(graph).any())
