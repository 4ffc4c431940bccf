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
#: longer; twice that is the end of the interval. With a worker on a CPU the rest of a step took 4% less to 6% more, the
#: hand-over apart (the tuning half's four loaders in bench_replay, on two free cores).
FETCH, CONTENTION = 0.04, 0.10


def describe(workers: int | None) -> str:
    """The change in words."""
    return "loader hidden" if workers is None else f"loader in {workers} worker{'s' if workers > 1 else ''}"


def change(graph: TaskGraph, times: TaskTimes, workers: int | None, interference: bool) -> None:
    """No time is left in the loader; with W workers a step takes no less than the W-th part of it.

    On a CPU the hand-over of a batch takes its place, which a loader that takes less is not worth. With interference a
    part of it is left in the loop, and all is slower.
    """
    data = loading(graph)
    steps = graph.last_step + 1
    data_ns = float(times.host[data].sum()) / steps
    if workers is not None:
        times.floor = max(times.floor, data_ns / workers)
    handover_ns = 0 if graph.on_device else loader_workers.HANDOVER_NS
    left = (handover_ns + (FETCH * data_ns if interference else 0)) / max(1.0, data_ns)
    times.host[data] = np.rint(times.host[data] * left).astype(np.int64)
    if not interference:
        return
    slowed = active(graph).pieces & ~data
    extra = min(CONTENTION, data_ns * max(0.0, 1 - left) * steps / max(1, int(times.host[slowed].sum())))
    times.host[slowed] += np.floor(times.host[slowed] * extra).astype(np.int64)


def applies(graph: TaskGraph) -> bool:
    """Whether the loop loads batches."""
    return bool(graph.recorded.host[loading(graph)].any())
