"""The batches are prepared by background processes, as many as keep up, or a given number."""

from __future__ import annotations

import numpy as np

from perfkit.limits import loader_workers
from perfkit.replay._selection import active, loading
from perfkit.replay.task_graph import TaskGraph, TaskTimes

NAME = "hide-loader"
TAKES = "number"

#: What the loop still does for a batch that a worker prepared, as a share of preparing it, and by how much workers slow
#: the host. From the public pair of ResNet-50 recordings with 0 and 4 workers: 1.2 of 56.8 ms, and ops that take 5%
#: longer; twice that is the end of the interval. A step on a CPU shares that with its workers, and has its own figures.
FETCH, CONTENTION = 0.04, 0.10


def describe(workers: int | None) -> str:
    """The change in words."""
    return "loader hidden" if workers is None else f"loader in {workers} worker{'s' if workers > 1 else ''}"


def change(graph: TaskGraph, times: TaskTimes, workers: int | None, interference: bool) -> None:
    """No time is left in the loader; with W workers a step takes no less than the W-th part of it.

    With interference a part of it is left in the loop, on a CPU also the hand-over of a batch, and all is slower.
    """
    data = loading(graph)
    data_ns = float(times.host[data].sum()) / (graph.last_step + 1)
    if workers is not None:
        times.floor = max(times.floor, data_ns / workers)
    if not interference:
        times.host[data] = 0
        return
    contention, handover_ns = CONTENTION, 0
    if not graph.on_device:
        contention, handover_ns = loader_workers.CONTENTION, loader_workers.HANDOVER_NS
    left = min(1.0, FETCH + handover_ns / max(1.0, data_ns))
    times.host[data] = np.rint(times.host[data] * left).astype(np.int64)
    slowed = active(graph).pieces & ~data
    extra = min(contention, data_ns * (1 - left) * (graph.last_step + 1) / max(1, int(times.host[slowed].sum())))
    times.host[slowed] += np.floor(times.host[slowed] * extra).astype(np.int64)


def applies(graph: TaskGraph) -> bool:
    """Whether the loop loads batches."""
    return bool(graph.recorded.host[loading(graph)].any())
