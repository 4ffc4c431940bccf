"""Launches cost the host nothing, as with CUDA graphs: the device no longer waits for ops to be dispatched."""

from __future__ import annotations

import numpy as np

from perfkit.replay._selection import active, caused_by, loading
from perfkit.replay.task_graph import TaskGraph, TaskTimes

NAME = "launch-overhead"
TAKES = "nothing"

#: Between two kernels of a graph.
GRAPH_GAP_NS = 1_000


def describe(_: None) -> str:
    """The change in words."""
    return "without launch overhead (CUDA graphs)"


def change(graph: TaskGraph, times: TaskTimes, _: None, interference: bool) -> None:
    """No time is left in ops and launches, nor in the Python around them; with interference Python stays."""
    gone = caused_by(graph, "operators", "launch call", "optimizer")
    if not interference:
        gone |= caused_by(graph, "python", "uninstrumented") & ~loading(graph)
    times.host[gone] = 0
    tasks = active(graph).tasks
    times.gap[tasks] = np.minimum(times.gap[tasks], GRAPH_GAP_NS)


def applies(graph: TaskGraph) -> bool:
    """Whether anything is launched."""
    return graph.on_device and bool(caused_by(graph, "operators", "launch call").any())
