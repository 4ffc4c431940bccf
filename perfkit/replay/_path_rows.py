"""The critical path by owner: which part of it is loading, Python, ops, launches, kernels and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfkit._location import Location
from perfkit.measures.device._idle import CAUSES
from perfkit.measures.device._idle_places import functions_of
from perfkit.measures.device._kernel_classes import class_of
from perfkit.measures.results.device import IdleCause
from perfkit.replay._selection import loading
from perfkit.replay.replaying import PathPart, ReplayRun, critical_path
from perfkit.replay.results import PathOwner, PathRow, PathStretch
from perfkit.replay.task_graph import TaskGraph
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Ints

#: What the host does, by the cause of a piece.
_OWNER_OF_CAUSE: dict[IdleCause, PathOwner] = {
    "data loading": "loader",
    "sync": "syncs",
    "allocation": "allocation",
    "first use": "first use",
    "copy call": "copy calls",
    "launch call": "launches",
    "optimizer": "optimizer",
    "python": "python",
    "uninstrumented": "python",
    "operators": "ops",
}
#: Equal times that a drawing of the path consists of: more than a screen has columns.
_STRETCHES = 2_000

_Key = tuple[PathOwner, str, int]


class PathNames:
    """Names and owners of the tasks of one graph."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self._is_loading = loading(graph)
        self.places, self.place_of = functions_of(graph.trace, graph.lanes.row)

    def of_piece(self, piece: int) -> _Key:
        """The owner, name and place of a piece of the host."""
        graph = self.graph
        row, place = int(graph.lanes.row[piece]), int(self.place_of[piece])
        if self._is_loading[piece]:
            return "loader", "waiting for the next batch", place
        cause = CAUSES[int(graph.lanes.cause[piece])]
        owner = _OWNER_OF_CAUSE.get(cause, "other calls")
        if row < 0 or cause == "uninstrumented":
            return owner, "nothing recorded", place
        if owner == "python":
            return (
                owner,
                "Python" if graph.trace.kind[row] == int(Kind.PYTHON) else graph.trace.names[graph.trace.name[row]],
                place,
            )
        return owner, graph.trace.names[graph.trace.name[row]], place

    def of_part(self, part: PathPart) -> _Key:
        """The owner and name of a stretch of the path on a device, or of a wait."""
        if part.how == "work":
            return self._of_work(part.task)
        if part.how == "unknown":
            return "unknown", "not in the trace", 0
        if part.how == "launch latency":
            return "launches", "launch latency", 0
        if part.task < 0:
            return ("syncs", "return of the call", 0) if part.how == "wait" else ("python", "another thread", 0)
        name = "event" if part.how == "wait" else "order of the stream"
        return "between kernels", name, 0

    def _of_work(self, task: int) -> _Key:
        graph = self.graph
        row = int(graph.tasks.row[task])
        kind, name = int(graph.trace.kind[row]), graph.trace.names[graph.trace.name[row]]
        if graph.tasks.is_graph[task]:
            return "graphs", "CUDA graph", 0
        if graph.tasks.communicates[task]:
            return "communication", name.partition("(")[0], 0
        if kind == int(Kind.COPY):
            return "copies", name, 0
        return ("memsets", name, 0) if kind == int(Kind.MEMSET) else ("kernels", f"{class_of(name)} kernels", 0)


def path_rows(
    run: ReplayRun, names: PathNames, parts: Sequence[PathPart], *, scale: float = 1.0
) -> tuple[PathRow, ...]:
    """The parts of the critical path by owner and name, longest first; ns per step times ``scale``."""
    sums: dict[_Key, int] = {}
    on_host = [part for part in parts if part.piece >= 0]
    for piece, ns in zip(*_pieces_of(run, on_host), strict=True):
        key = names.of_piece(piece)
        sums[key] = sums.get(key, 0) + ns
    for part in parts:
        if part.piece < 0:
            key = names.of_part(part)
            sums[key] = sums.get(key, 0) + part.ends - part.starts
    whole, steps = sum(sums.values()), run.step_ends.size
    rows = [
        PathRow(owner=owner, name=name, ns=round(ns * scale / steps), share=ns / whole, at=_place(names.places, place))
        for (owner, name, place), ns in sums.items()
        if ns > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _place(places: Sequence[Location | None], place: int) -> Location | None:
    return places[place]


def _pieces_of(run: ReplayRun, parts: Sequence[PathPart]) -> tuple[list[int], list[int]]:
    """The pieces of the host that these stretches pass, with the time of each, summed by what they are."""
    graph = run.graph
    spent = np.zeros(graph.lanes.starts.size, np.int64)
    for part in parts:
        spent[part.piece : part.last_piece] += run.times.host[part.piece : part.last_piece]
    mine = np.flatnonzero(spent)
    # One piece stands for all with the same event name, cause and place.
    code = _codes(graph, mine)
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    total = np.bincount(place.reshape(-1), weights=spent[mine], minlength=first.size)
    return mine[first].tolist(), np.rint(total).astype(np.int64).tolist()


def _codes(graph: TaskGraph, pieces: Ints) -> Ints:
    """A number for each piece; equal ones have the same event name, cause and place."""
    row = graph.lanes.row[pieces]
    name = np.where(row >= 0, graph.trace.name[row], -1).astype(np.int64)
    places, place = functions_of(graph.trace, row)
    # One number and not four columns: numpy sorts these ten times as fast.
    code = (name + 1) * len(CAUSES) + graph.lanes.cause[pieces]
    return np.asarray((code * (len(places) + 1) + place) * 2 + loading(graph)[pieces], np.int64)


def path_stretches(run: ReplayRun, names: PathNames) -> tuple[PathStretch, ...]:
    """The critical path on the time line: in each of `_STRETCHES` equal times the owner of most of it."""
    width = max(1, -(-run.total_ns // _STRETCHES))
    begin = int(run.over[run.graph.begin])
    cuts = _cut(run, names)
    # A cut that several of the equal times share counts in each with its part.
    first, last = (cuts.starts - begin) // width, (cuts.ends - begin - 1) // width
    times = last - first + 1
    cut = np.repeat(np.arange(times.size), times)
    at = np.arange(cut.size) - np.repeat(np.cumsum(times) - times, times) + first[cut]
    inside = np.minimum(cuts.ends[cut], begin + (at + 1) * width) - np.maximum(cuts.starts[cut], begin + at * width)
    both, place = np.unique(at * len(cuts.keys) + cuts.key[cut], return_inverse=True)
    spent = np.bincount(place, weights=inside, minlength=both.size)
    at, key = np.divmod(both, len(cuts.keys))
    order = np.lexsort((-spent, at))
    most = order[np.append(True, np.diff(at[order]) > 0)[: order.size]]
    found: list[PathStretch] = []
    end = begin + run.total_ns
    for number, owner_key in zip(at[most].tolist(), key[most].tolist(), strict=True):
        owner, name, _ = cuts.keys[owner_key]
        until = min(begin + (number + 1) * width, end)
        last_one = found[-1] if found else None
        if last_one is not None and last_one.owner == owner:
            found[-1] = PathStretch(start_ns=last_one.start_ns, end_ns=until, owner=owner, name=last_one.name)
        else:
            start_ns = last_one.end_ns if last_one is not None else begin
            found.append(PathStretch(start_ns=start_ns, end_ns=until, owner=owner, name=name))
    return tuple(found)


class _Cuts(NamedTuple):
    """The path in pieces of one kind: their times, and the index of what they are among ``keys``."""

    starts: Ints
    ends: Ints
    key: Ints
    keys: list[_Key]


def _cut(run: ReplayRun, names: PathNames) -> _Cuts:
    """The path by what the host did in it, and by what the device or a wait was."""
    parts = critical_path(run)
    of_host = [part for part in parts if part.piece >= 0]
    others = [part for part in parts if part.piece < 0 and part.ends > part.starts]
    counts = np.array([part.last_piece - part.piece for part in of_host], np.int64)
    before = np.cumsum(counts) - counts
    pieces = np.arange(counts.sum()) + np.repeat(np.array([part.piece for part in of_host], np.int64) - before, counts)
    ends = np.cumsum(run.times.host[pieces])
    starts = ends - run.times.host[pieces]
    begun = starts[np.minimum(before, max(0, starts.size - 1))] if starts.size else before
    shift = np.repeat(np.array([part.starts for part in of_host], np.int64) - begun, counts)
    _, one, code = np.unique(_codes(run.graph, pieces), return_index=True, return_inverse=True)
    numbers: dict[_Key, int] = {}
    number_of = np.array(
        [numbers.setdefault(names.of_piece(piece), len(numbers)) for piece in pieces[one].tolist()], np.int64
    )
    other = [numbers.setdefault(names.of_part(part), len(numbers)) for part in others]
    some = ends > starts
    return _Cuts(
        np.concatenate(((starts + shift)[some], np.array([part.starts for part in others], np.int64))),
        np.concatenate(((ends + shift)[some], np.array([part.ends for part in others], np.int64))),
        np.concatenate((number_of[code][some], np.array(other, np.int64))),
        list(numbers),
    )
