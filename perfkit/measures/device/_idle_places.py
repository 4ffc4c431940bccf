"""Idle time of a device by cause and by the function of the user's that the host was in."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import sum_by
from perfkit.measures._trace_cache import once
from perfkit.measures.device._idle import CAUSES, LATE, Pieces
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.results.device import IdleTime
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

#: The share of late launches by which idle intervals are counted: many short ones hold little of it.
MOST = 0.8
#: Places of one cause that are told apart: as many as a report lists of anything.
MAX_PLACES = 20


def idle_times(trace: Trace, pieces: Pieces) -> tuple[IdleTime, ...]:
    """The pieces by cause and place, longest first; they sum to the idle time exactly."""
    found = []
    places, of = functions_of(trace, pieces.row)
    intervals = int(pieces.interval.max(initial=0)) + 1
    for code in np.unique(pieces.cause).tolist():
        spent: dict[Location | None, list[int]] = defaultdict(lambda: [0, 0])
        mine = pieces.cause == code
        length = (pieces.ends - pieces.starts)[mine]
        time = sum_by(of[mine], length, len(places))
        # One number for place and interval: rows of two are sorted several times slower.
        gaps = np.bincount(np.unique(of[mine] * intervals + pieces.interval[mine]) // intervals, minlength=len(places))
        for rank, place in enumerate(np.argsort(-time, kind="stable").tolist()):
            # Gaps of several places that are not told apart may be counted more than once.
            entry = spent[places[place] if rank < MAX_PLACES else None]
            entry[0] += int(time[place])
            entry[1] += int(gaps[place])
        found += [IdleTime(cause=CAUSES[code], at=at, ns=ns, gaps=n) for at, (ns, n) in spent.items() if ns]
    return tuple(sorted(found, key=lambda one: -one.ns))


def late_gaps(pieces: Pieces) -> int:
    """The number of the longest idle intervals that hold `MOST` of the time in which the host launched late."""
    mine = np.isin(pieces.cause, LATE)
    if not mine.any():
        return 0
    spent = sum_by(pieces.interval[mine], (pieces.ends - pieces.starts)[mine], int(pieces.interval.max()) + 1)
    together = np.cumsum(np.sort(spent)[::-1])
    return int(np.searchsorted(together, MOST * together[-1])) + 1


def functions_of(trace: Trace, rows: Ints) -> tuple[list[Location | None], Ints]:
    """Functions of the user's, and for each row the index of the one that it is in; the first is None, for none."""
    places: list[Location | None] = [None]
    of = np.zeros(rows.size, np.int64)
    if not trace.is_kind(Kind.PYTHON).any():
        return places, of
    frames = _frames(trace)
    row = np.maximum(rows, 0)
    frame = np.where(frames.is_frame[row], row, frames.around[row])
    known = np.flatnonzero((rows >= 0) & (frame >= 0))
    index: dict[Location | None, int] = {None: 0}
    names, first, name = np.unique(trace.name[frame[known]], return_index=True, return_inverse=True)
    place = np.zeros(names.size, np.int64)
    for i, one in enumerate(frame[known[first]].tolist()):
        function = frames.function(one)
        at = Location(file=function.file, line=function.first_line, function=function.name, owner=function.owner)
        place[i] = index.setdefault(at, len(index))
    of[known] = place[name.reshape(-1)]
    return list(index), of


@once
def _frames(trace: Trace) -> PythonFrames:
    return PythonFrames(trace, None, ())
