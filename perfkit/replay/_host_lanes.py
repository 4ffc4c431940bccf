"""The host's side of a task graph: lanes of pieces, one after another, each with what the host did in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.measures.device._idle import CODE, Host
from perfkit.measures.host._blocking_calls import blocking_calls
from perfkit.measures.results.device import IdleCause
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Bools, Ints, Union, joined, union, without
from perfkit.trace.nesting import find_innermost

#: A gap of a thread that is no shorter separates two bursts of its work: facts of other tools, and HTA's limit above
#: which a gap is an unknown dependency (1.5 ms), put it between 1 and 2 ms.
BURST_NS = 1_000_000


class HostLanes(NamedTuple):
    """The host's time, lane by lane, in order of time: lane ``k`` has the pieces ``first[k]`` to ``first[k + 1]``.

    The last piece of each lane is empty: it stands for the lane's end. ``row`` is the innermost event of a piece, -1
    for a gap; ``cause`` is what the host does in it, a code of `perfkit.measures.device._idle.CAUSES`.
    ``lane_of_track`` is the lane of each thread, -1 for one that neither launches nor waits; lane 0 is the loop's.
    """

    first: Ints
    starts: Ints
    ends: Ints
    row: Ints
    cause: Ints
    lane_of_track: Ints
    #: Pieces of zero length in the replay that end a burst: the next one begins when lane 0 has come as far.
    is_break: Bools

    @property
    def size(self) -> int:
        """The number of lanes."""
        return int(self.first.size) - 1

    def boundary(self, lane: Ints, times: Ints) -> Ints:
        """The piece of these lanes that begins at each time or, where none does, the next one."""
        found = np.zeros(times.size, np.int64)
        for one in np.flatnonzero(np.bincount(lane, minlength=self.size)).tolist():
            low, high = int(self.first[one]), int(self.first[one + 1])
            mine = lane == one
            at = np.searchsorted(self.starts[low:high], times[mine], side="left")
            found[mine] = low + np.minimum(at, high - low - 1)
        return found


def find_lanes(trace: Trace) -> HostLanes:
    """The lanes of a trace: the loop's thread with autograd's, which take turns, and each other one that launches."""
    host = Host(trace)
    launches = trace.launch[trace.device_rows]
    calls = np.concatenate((launches[launches >= 0], blocking_calls(trace)))
    acting = np.flatnonzero(np.bincount(trace.track[calls], minlength=len(trace.tracks))).tolist()
    together = [*sorted(host.workers), host.main]
    lanes = [together, *([track] for track in acting if track not in together)]
    lane_of_track = np.full(len(trace.tracks), -1, np.int64)
    parts = []
    for number, tracks in enumerate(lanes):
        lane_of_track[tracks] = number
        parts.append(_pieces(trace, host, tracks))
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum([part.starts.size for part in parts])))
    starts, ends, row, cause = (np.concatenate(column) for column in zip(*parts, strict=True))
    lane = np.repeat(np.arange(len(lanes)), np.diff(first))
    is_break = (lane > 0) & (row < 0) & (ends - starts >= BURST_NS)
    return HostLanes(first, starts, ends, row, cause, lane_of_track, is_break)


class _Pieces(NamedTuple):
    starts: Ints
    ends: Ints
    row: Ints
    cause: Ints


def _pieces(trace: Trace, host: Host, tracks: list[int]) -> _Pieces:
    """The time of threads that take turns: where several have an event open, that of the first counts."""
    covered = Union(np.zeros(0, np.int64), np.zeros(0, np.int64))
    parts = []
    for track in tracks:
        rows = host.rows_of(track)
        segments = find_innermost(trace.start_ns[rows], trace.end_ns[rows])
        time = Union(segments.starts, segments.ends)
        inside = without(time, covered) if covered.starts.size else time
        which = np.searchsorted(time.starts, inside.starts, side="right") - 1
        cause = host.causes(rows)
        owner = segments.owner[which]
        parts.append(_Pieces(*inside, rows[owner], cause[owner]))
        if len(tracks) > 1:
            covered = joined(covered, union(*time))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    if not order.size:
        # A thread of which nothing was recorded: its lane is one moment, at the beginning.
        moment = np.array([int(trace.start_ns.min()) if len(trace) else 0], np.int64)
        return _Pieces(moment, moment, np.full(1, -1), np.full(1, CODE["uninstrumented"]))
    return _without_gaps(_Pieces(*(column[order] for column in columns)))


def _without_gaps(pieces: _Pieces) -> _Pieces:
    """The pieces, with one of no event for each gap between two, and an empty one at the end."""
    starts, ends, row, cause = pieces
    at = np.flatnonzero(starts[1:] > ends[:-1]) + 1
    gap = np.full(at.size, CODE["uninstrumented"])
    starts, ends = np.insert(starts, at, ends[at - 1]), np.insert(ends, at, starts[at])
    row, cause = np.insert(row, at, -1), np.insert(cause, at, gap)
    last = ends[-1:]
    return _Pieces(
        np.append(starts, last), np.append(ends, last), np.append(row, -1), np.append(cause, CODE["uninstrumented"])
    )


def causes_named(*causes: IdleCause) -> Ints:
    """The codes of causes."""
    return np.array([CODE[cause] for cause in causes], np.int64)
