"""Copies between host and device are asynchronous: from pinned memory, in the background."""

from __future__ import annotations

import re

import numpy as np

from perfkit.replay._selection import active
from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.replay.transforms.host.sync import syncs_of, without_calls
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Bools

NAME = "copy-waits"
TAKES = "nothing"

_ACROSS = re.compile(r"Memcpy (?:HtoD|DtoH)")


def describe(_: None) -> str:
    """The change in words."""
    return "copies asynchronous"


def _copies(graph: TaskGraph) -> Bools:
    trace, row = graph.trace, graph.tasks.row
    across = {code: _ACROSS.match(trace.names[code]) is not None for code in np.unique(trace.name[row]).tolist()}
    hit = np.array([across[code] for code in trace.name[row].tolist()], bool)
    return np.asarray(active(graph).tasks & (trace.kind[row] == int(Kind.COPY)) & hit, bool)


def change(graph: TaskGraph, times: TaskTimes, _: None, interference: bool) -> None:
    """No call waits for its copy, and copies run while kernels do; with interference in the order of their stream."""
    copies = _copies(graph)
    waits = syncs_of(graph) & copies[graph.waits.source]
    times.holds &= ~waits
    if not interference:
        without_calls(graph, times, waits)
        for column in (times.work, times.gap, times.unknown):
            column[copies] = 0


def applies(graph: TaskGraph) -> bool:
    """Whether anything is copied between host and device."""
    return bool(_copies(graph).any())
