"""Which of the user's lines a row of a trace counts for: the one that called it, or that made its backward node."""

from __future__ import annotations

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import find_open
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Bools, Ints


def thread_of_frames(trace: Trace, frames: PythonFrames) -> int:
    """The thread that trains: that of the steps, without steps the one with most frames."""
    steps = whole_steps(trace)
    return int(steps.track[0]) if steps.row.size else int(np.bincount(trace.track[frames.rows]).argmax())


class LineAttribution:
    """The frame and the time that a row counts for: its own, or those of the op that made its node of the backward."""

    def __init__(self, trace: Trace, frames: PythonFrames, thread: int) -> None:
        self.trace = trace
        self._frames = frames
        self._thread = thread
        backward = pair_backward(trace)
        self.is_node = backward.is_node
        self._maker = np.full(len(trace), -1, np.int64)
        self._maker[backward.node] = backward.maker
        self._node = np.where(backward.is_node, np.arange(len(trace)), trace.above(backward.is_node))

    def of(self, rows: Ints, at: Ints | None = None) -> tuple[Ints, Ints, Bools]:
        """(frame or -1, time, whether it is the maker's) of each row; ``at`` is when, if not at the row's start."""
        trace, frames = self.trace, self._frames
        at = trace.start_ns[rows] if at is None else at.copy()
        frame = np.where(frames.is_frame[rows], rows, frames.around[rows])
        node = self._node[rows]
        in_node = node >= 0
        # A frame inside the node is the user's own backward.
        in_node &= (frame < 0) | (trace.start_ns[np.maximum(frame, 0)] < trace.start_ns[np.maximum(node, 0)])
        maker = np.where(in_node, self._maker[np.maximum(node, 0)], -1)
        made = (maker >= 0) & (frames.around[np.maximum(maker, 0)] >= 0)
        frame = np.where(made, frames.around[np.maximum(maker, 0)], frame)
        at[made] = trace.start_ns[maker[made]]
        # The engine's own thread has no frames: it works for the line that waits in backward(). So does any other
        # thread where only one was followed.
        without = node >= 0
        if frames.of_one_thread:
            without |= trace.track[rows] != self._thread
        lost = np.flatnonzero((frame < 0) & without)
        if lost.size:
            threads = np.full(lost.size, self._thread, np.int64)
            frame[lost] = find_open(trace, frames.rows, threads, at[lost])
        return frame, at, made

    def keys(self, rows: Ints, at: Ints | None = None) -> tuple[list[Location | None], Bools]:
        """The line of each row, None for those in no frame; and whether it is the one that made its node."""
        frame, when, made = self.of(rows, at)
        known = np.flatnonzero(frame >= 0)
        keys: list[Location | None] = [None] * rows.size
        for place, key in zip(known.tolist(), self._frames.locations(frame[known], when[known]), strict=True):
            keys[place] = key
        return keys, made
