"""Ops, kernels, ranges or modules take x times their time."""

from __future__ import annotations

import numpy as np

from perfkit.replay._selection import below, matching_rows
from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.trace.intervals import Bools

NAME = "scale"
TAKES = "pattern=number"


def describe(argument: tuple[str, float]) -> str:
    """The change in words."""
    pattern, factor = argument
    return f"without {pattern}" if factor == 0 else f"{pattern} at {factor:g} times its time"


def change(graph: TaskGraph, times: TaskTimes, argument: tuple[str, float], interference: bool) -> None:
    """Scale what matches and all that it calls and launches; with interference the host still takes its
    time for what runs on a device."""
    pattern, factor = argument
    scale_rows(graph, times, matching_rows(graph.trace, pattern), factor, interference)


def scale_rows(graph: TaskGraph, times: TaskTimes, rows: Bools, factor: float, interference: bool) -> None:
    """Scale these rows, as `change` does."""
    found = below(graph, rows)
    times.work[found.tasks] = np.rint(times.work[found.tasks] * factor).astype(np.int64)
    if interference and found.tasks.any():
        return
    times.host[found.pieces] = np.rint(times.host[found.pieces] * factor).astype(np.int64)


def applies(graph: TaskGraph) -> bool:
    """Whether there is anything to scale."""
    return graph.count > 0
