"""All ranks arrive at collectives together: none waits for another one in them."""

from __future__ import annotations

import numpy as np

from perfkit.measures.device.communication import waiting_times
from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.replay.transforms.device.exposed_communication import collectives

NAME = "rank-waits"
TAKES = "nothing"


def describe(_: None) -> str:
    """The change in words."""
    return "without waiting for other ranks"


def change(graph: TaskGraph, times: TaskTimes, _: None, interference: bool) -> None:
    """A collective takes as long as the fastest of its kind and size; with interference half of the rest remains.

    One trace does not show when the other ranks arrived: what is longer than the fastest is taken as waiting, though a
    slower link looks the same.
    """
    talks = np.flatnonzero(collectives(graph))
    waiting = np.maximum(waiting_times(graph.trace, graph.tasks.row[talks]), 0)
    if interference:
        waiting //= 2
    times.work[talks] = np.maximum(times.work[talks] - waiting, 0)


def applies(graph: TaskGraph) -> bool:
    """Whether a collective took longer than the fastest of its kind."""
    talks = graph.tasks.row[collectives(graph)]
    return bool(talks.size) and bool((waiting_times(graph.trace, talks) > 0).any())
