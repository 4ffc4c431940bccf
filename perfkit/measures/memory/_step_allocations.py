"""The allocations around one step: where each was made, by phase, module, op and line, and what it is held for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import find_open
from perfkit.measures._rows import mask_of
from perfkit.measures.host._line_attribution import LineAttribution
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.memory._lives import Lives
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.steps._phase_times import phase_times, phases_at
from perfkit.run.records import Holding, LineTimes, MemorySteps, Phase
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

#: Ops, calls and ranges around an allocation that are climbed; a real program nests fewer.
_DEEP = 64


class Places(NamedTuple):
    """Where each of some memory events happened, one entry for each.

    ``op`` is the row of the innermost op (-1 for none), ``outer`` of the outermost one in the same module; ``inside``
    the row of the module's range around it in the same direction (forward, or recomputed), ``module`` the module's name
    by that or by the forward op whose backward it is; ``frame`` and ``when`` are what `LineAttribution.of` returns.
    """

    op: Ints
    outer: Ints
    inside: Ints
    module: tuple[str | None, ...]
    phase: tuple[Phase, ...]
    frame: Ints
    when: Ints


class StepPlaces:
    """Finds where memory events happened in a trace of steps that were recorded for memory."""

    def __init__(self, trace: Trace, record: MemorySteps, times: LineTimes | None) -> None:
        self.trace = trace
        self.frames = PythonFrames(trace, times, ())
        steps = trace.steps
        self.step = int(np.flatnonzero(steps.number == record.steps[-1])[0])
        self.start_ns, self.end_ns = int(steps.start_ns[self.step]), int(steps.end_ns[self.step])
        self.thread = int(steps.track[self.step])
        self._lines = LineAttribution(trace, self.frames, self.thread)
        names = set(record.modules)
        is_module = np.array([name in names for name in trace.names], bool)
        self.modules = trace.ranges[is_module[trace.name[trace.ranges]]]
        self._around_module = trace.above(mask_of(trace, self.modules))
        self._is_op = trace.is_kind(Kind.OP)
        self._op_above = trace.above(self._is_op)
        backward = pair_backward(trace)
        self.is_node = backward.is_node
        self._maker = np.full(len(trace), -1, np.int64)
        self._maker[backward.node] = backward.maker
        self._node = np.where(backward.is_node, np.arange(len(trace)), trace.above(backward.is_node))
        self.has_backward = "backward" in phase_times(trace)

    def of(self, rows: Ints) -> Places:
        """The places of these memory events."""
        trace = self.trace
        times, tracks = trace.start_ns[rows], trace.track[rows]
        holder = find_open(trace, trace.host_rows, tracks, times)
        op = find_open(trace, np.flatnonzero(self._is_op), tracks, times)
        inside = find_open(trace, self.modules, tracks, times)
        node = np.where(op >= 0, self._node[op], -1)
        # A range around the call of backward is not where a node's memory belongs, one inside a node is.
        inside = np.where((node >= 0) & (inside >= 0) & (self._start(inside) < self._start(node)), -1, inside)
        maker = np.where((node >= 0) & (inside < 0), self._maker[node], -1)
        module_row = np.where(maker >= 0, self._around_module[maker], inside)
        frame, when = np.full(rows.size, -1, np.int64), times.copy()
        known = np.flatnonzero(holder >= 0)
        if known.size and self.frames.rows.size:
            frame[known], when[known], _ = self._lines.of(holder[known], times[known])
        names = trace.names
        return Places(
            op=op,
            outer=self._outermost(op, self._start(inside)),
            inside=inside,
            module=tuple(names[trace.name[row]] if row >= 0 else None for row in module_row.tolist()),
            phase=tuple(phases_at(trace, times)),
            frame=frame,
            when=when,
        )

    def _start(self, rows: Ints) -> Ints:
        return np.where(rows >= 0, self.trace.start_ns[rows], np.iinfo(np.int64).min)

    def _outermost(self, op: Ints, since: Ints) -> Ints:
        """The outermost op around each op that began no earlier than ``since``."""
        found = op.copy()
        for _ in range(_DEEP):
            above = np.where(found >= 0, self._op_above[found], -1)
            climbs = (above >= 0) & (self._start(above) >= since)
            if not climbs.any():
                break
            found = np.where(climbs, above, found)
        return found

    def lines(self, places: Places) -> list[Location | None]:
        """The user's line of each place, None where it is not known."""
        known = np.flatnonzero(places.frame >= 0)
        found: list[Location | None] = [None] * places.frame.size
        locations = self.frames.locations(places.frame[known], places.when[known])
        for place, location in zip(known.tolist(), locations, strict=True):
            found[place] = location
        return found

    def calls(self, frame: int, when: int) -> list[Location]:
        """The user's calls that led there, outermost first."""
        rows: list[int] = []
        while frame >= 0 and len(rows) < _DEEP:
            rows.append(frame)
            frame = int(self.frames.around[frame])
        rows.reverse()
        return self.frames.locations(np.array(rows, np.int64), np.full(len(rows), when, np.int64))

    def first_call(self) -> int:
        """When the first module was called in the step; its end where none was."""
        starts = self.trace.start_ns[self.modules]
        starts = starts[(starts >= self.start_ns) & (starts < self.end_ns)]
        return int(starts.min()) if starts.size else self.end_ns

    def holding(self, lives: Lives, piece: int, places: Places, at: int) -> Holding:
        """What a piece of memory is held for; ``at`` is its entry in ``places``."""
        noted = lives.holding.get(piece)
        start, end = int(lives.start_ns[piece]), int(lives.end_ns[piece])
        phase, inside = places.phase[at], int(places.inside[at])
        if noted == "inputs" and (inside >= 0 or start >= self.first_call()):
            noted = None  # what one module computed and another one got
        if noted is not None:
            return noted
        computes = phase == "forward" or inside >= 0 or (phase == "other" and not self.has_backward)
        if phase in ("data", "transfer"):
            return "inputs"
        if computes:
            outer = int(places.outer[at])
            return "activations" if outer < 0 or end > int(self.trace.end_ns[outer]) else "temporaries"
        return "temporaries" if end <= self.end_ns or phase in ("backward", "optimizer") else "other"
