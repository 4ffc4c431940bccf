"""The order in which a task graph is replayed: each node after all that it waits for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.replay._device_tasks import DeviceTasks
from perfkit.replay._host_lanes import HostLanes
from perfkit.trace.columns import positions_in
from perfkit.trace.intervals import Bools, Ints


class TaskWaits(NamedTuple):
    """TaskWaits for tasks: ``source`` ends before the call ``row`` returns, or (``task`` >= 0) before that task begins.

    ``is_copy``: the call waits for its own copy. ``piece`` is the host's piece that begins after the wait, -1 for
    tasks.
    """

    source: Ints
    row: Ints
    task: Ints
    piece: Ints
    is_copy: Bools


class Before(NamedTuple):
    """What each task of a device follows: the task before it on its stream, and the piece at which it is launched."""

    task: Ints
    piece: Ints


class Nodes(NamedTuple):
    """The nodes of the recursion in the order in which it runs; node 0 is the origin, at time 0.

    A node is the beginning of a piece of a lane (``piece``), the end of a device's task (``task``), or a join of
    several waits (neither). It has up to three nodes before it, -1 for none: ``before`` on its lane or stream;
    ``launch``, for a burst of another thread a node of lane 0, which passed ``fixed`` ns before it; ``wait``, the
    source of the wait number ``edge`` (-1: a join). ``usable`` is, for each wait, whether its source runs before what
    waits for it.
    """

    piece: Ints
    task: Ints
    before: Ints
    launch: Ints
    fixed: Ints
    wait: Ints
    edge: Ints
    usable: Bools
    node_of_task: Ints
    pieces: Ints
    node_of_pieces: Ints

    def of_piece(self, piece: Ints) -> Ints:
        """The node at the beginning of each of these pieces; -1 where the recursion has none."""
        return np.append(self.node_of_pieces, -1)[positions_in(self.pieces, piece)]


def order_nodes(
    lanes: HostLanes, tasks: DeviceTasks, before: Before, waits: TaskWaits, marks: Ints, origin: int
) -> Nodes:
    """The nodes that a replay needs: only what another task waits for, or what waits, is one."""
    burst, passed = _bursts(lanes)
    needed = np.zeros(lanes.starts.size, bool)
    for some in (before.piece, waits.piece, passed):
        needed[some[some >= 0]] = True
    for all_of in (marks, burst, lanes.first[:-1], lanes.first[1:] - 1):
        needed[all_of] = True
    pieces = np.flatnonzero(needed)
    count = pieces.size + tasks.size
    # Nodes in order of time; a launch comes before the work that begins at the same instant.
    kind = np.repeat(np.array([0, 1]), (pieces.size, tasks.size))
    order = np.lexsort((kind, np.concatenate((lanes.starts[pieces], tasks.starts))))
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    of_piece, of_task = rank[: pieces.size], rank[pieces.size :]

    target = np.where(waits.task >= 0, of_task[waits.task], of_piece[_place(pieces, waits.piece)])
    usable = of_task[waits.source] < target
    joins = _joins(target, usable)
    # Joins stand right before what they join for; the origin before all.
    at = np.searchsorted(np.sort(joins.target), np.arange(count), side="right") + np.arange(count) + 1
    size = count + joins.target.size + 1
    none = np.full(size, -1, np.int64)
    columns = {name: none.copy() for name in ("piece", "task", "before", "launch", "wait", "edge")}
    fixed = np.zeros(size, np.int64)
    node_of_piece, node_of_task = at[of_piece], at[of_task]
    columns["piece"][node_of_piece], columns["task"][node_of_task] = pieces, np.arange(tasks.size)

    lane = np.searchsorted(lanes.first, pieces, side="right") - 1
    follows = np.flatnonzero(lane[1:] == lane[:-1]) + 1
    columns["before"][node_of_piece[follows]] = node_of_piece[follows - 1]
    has = before.task >= 0
    columns["before"][node_of_task[has]] = node_of_task[before.task[has]]
    has = before.piece >= 0
    columns["launch"][node_of_task[has]] = node_of_piece[_place(pieces, before.piece[has])]

    # Lanes begin at the origin, and bursts of other threads when the loop's has come as far.
    first = np.append(burst, lanes.first[0])
    node = node_of_piece[_place(pieces, first)]
    loop = np.append(passed, -1)
    columns["launch"][node] = np.where(loop >= 0, node_of_piece[_place(pieces, loop)], 0)
    fixed[node] = lanes.starts[first] - np.where(loop >= 0, lanes.starts[loop], origin)
    lost = np.flatnonzero((before.task < 0) & (before.piece < 0))
    columns["launch"][node_of_task[lost]] = 0
    fixed[node_of_task[lost]] = tasks.starts[lost] - origin

    _place_waits(columns, joins, at, node_of_task[waits.source])
    return Nodes(
        **columns, fixed=fixed, usable=usable, node_of_task=node_of_task, pieces=pieces, node_of_pieces=node_of_piece
    )


def _place(pieces: Ints, wanted: Ints) -> Ints:
    return np.minimum(np.searchsorted(pieces, wanted), pieces.size - 1)


def _bursts(lanes: HostLanes) -> tuple[Ints, Ints]:
    """The pieces at which other threads begin a burst of work, and the piece of lane 0 that it was in; -1 for none."""
    begin = np.concatenate((lanes.first[1:-1], np.flatnonzero(lanes.is_break) + 1))
    at = np.searchsorted(lanes.starts[: lanes.first[1]], lanes.starts[begin], side="right") - 1
    return begin, at


class _Joins(NamedTuple):
    """TaskWaits by what waits: ``alone`` are the only ones of theirs, the others go through one join each.

    ``edge`` is the wait of each join and ``target`` what waits, sorted; ``is_first`` and ``is_last`` of a target's.
    """

    alone: Ints
    alone_target: Ints
    edge: Ints
    target: Ints
    is_first: Bools
    is_last: Bools


def _joins(target: Ints, usable: Bools) -> _Joins:
    edges = np.flatnonzero(usable)
    edges = edges[np.argsort(target[edges], kind="stable")]
    ordered = target[edges]
    first = np.append(True, ordered[1:] != ordered[:-1])[: ordered.size]
    last = np.append(ordered[1:] != ordered[:-1], True)[: ordered.size]
    alone = first & last
    rest = ~alone
    return _Joins(edges[alone], ordered[alone], edges[rest], ordered[rest], first[rest], last[rest])


def _place_waits(columns: dict[str, Ints], joins: _Joins, at: Ints, source: Ints) -> None:
    """Enter the waits: each join waits for one task and for the join before it."""
    columns["wait"][at[joins.alone_target]] = source[joins.alone]
    columns["edge"][at[joins.alone_target]] = joins.alone
    if not joins.edge.size:
        return
    # The joins of a target stand right before it, the last one next to it.
    last = np.flatnonzero(joins.is_last)
    behind = last[np.searchsorted(last, np.arange(joins.edge.size))] - np.arange(joins.edge.size)
    node = at[joins.target] - 1 - behind
    columns["wait"][node], columns["edge"][node] = source[joins.edge], joins.edge
    columns["before"][node[~joins.is_first]] = node[~joins.is_first] - 1
    columns["wait"][at[joins.target[joins.is_last]]] = node[joins.is_last]
