"""Where device work comes from: the API call that launched it, the op around that call, and the user's line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import groups, sum_by
from perfkit.measures._rows import name_codes, nearest_above
from perfkit.measures._trace_cache import once
from perfkit.measures.host._line_attribution import LineAttribution, thread_of_frames
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.trace.columns import CodeTable, Kind, Trace
from perfkit.trace.intervals import Ints


class Origin(NamedTuple):
    """The API call, the innermost op around it, and the user's line; None where the trace does not show one."""

    call: str | None
    op: str | None
    at: Location | None


@once
def plain_frames(trace: Trace) -> PythonFrames | None:
    """The Python frames that the trace itself has (recorded with ``with_stack``); None without any."""
    if not trace.is_kind(Kind.PYTHON).any():
        return None
    frames = PythonFrames(trace, None, ())
    return frames if frames.rows.size else None


def lines_of(trace: Trace, rows: Ints, frames: PythonFrames | None = None) -> list[Location | None]:
    """The user's line of each of these rows of the host, -1 for no row; None where the trace has no frame for it.

    Args:
        trace: The trace.
        rows: Rows of the host: launches, ops.
        frames: The frames to use; by default those that the trace itself has.
    """
    frames = frames if frames is not None else plain_frames(trace)
    found: list[Location | None] = [None] * rows.size
    if frames is None:
        return found
    known = np.flatnonzero(rows >= 0)
    keys, _ = LineAttribution(trace, frames, thread_of_frames(trace, frames)).keys(rows[known])
    for place, key in zip(known.tolist(), keys, strict=True):
        found[place] = key
    return found


def launching_ops(trace: Trace, rows: Ints) -> Ints:
    """The innermost op around the launch of each of these rows of device work; -1 for none."""
    launch = trace.launch[rows]
    op = np.full(rows.size, -1, np.int64)
    known = launch >= 0
    op[known] = nearest_above(trace, launch[known], trace.is_kind(Kind.OP))
    return op


def main_origins(trace: Trace, rows: Ints, frames: PythonFrames | None = None) -> dict[int, Origin]:
    """For each name of this device work, by its code, the origin that most of its time has."""
    return dict(_main_origins(trace, rows, frames)) if rows.size else {}


def _main_origins(trace: Trace, rows: Ints, frames: PythonFrames | None) -> Iterator[tuple[int, Origin]]:
    launch = trace.launch[rows]
    places: CodeTable = CodeTable()
    launches, place = np.unique(launch, return_inverse=True)
    lines = lines_of(trace, launches, frames)
    line = np.array([places[at] for at in lines], np.int64)[place]
    call, op = name_codes(trace, launch), name_codes(trace, launching_ops(trace, rows))
    keys, key = np.unique(np.stack([trace.name[rows], call, op, line], axis=1), axis=0, return_inverse=True)
    times = sum_by(key.reshape(-1), trace.duration_ns[rows], len(keys))
    known = list(places)
    for code, mine in groups(keys[:, 0]):
        _, call_name, op_name, at = keys[mine[int(times[mine].argmax())]].tolist()
        yield (
            code,
            Origin(
                call=trace.names[call_name] if call_name >= 0 else None,
                op=trace.names[op_name] if op_name >= 0 else None,
                at=known[at],
            ),
        )
