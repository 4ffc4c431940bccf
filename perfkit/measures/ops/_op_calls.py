"""The ops that Python called, in order: what each costs with its part of the backward, where it stands, what it got.

One step is recorded for lines, with shapes, and on a busy machine one step says little about time. So an op's time is
the shortest of the same call (the third ``aten::mul`` of a step) over the steps of the window, where the two are alike:
what else runs on a machine only lengthens a call, by 10 ms where it takes the processor away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import sum_by
from perfkit.measures._rows import nearest_above
from perfkit.measures._trace_cache import once
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.ops._optimizer_updates import usual_updates, usual_wait
from perfkit.measures.steps._trace_steps import steps_of_ops, whole_steps
from perfkit.run.records import LineTimes, TracedLine
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints

#: Ops that are looked at: beyond, the first steps stand for all. Their arguments are read again from the file.
MOST_OPS = 100_000


class TypicalTimes(NamedTuple):
    """Host time of the calls of a usual step.

    ``calls`` holds for each name the shortest time of its first, second ... call in a step, in ns; a single one, the
    median, where the steps do not call it equally often. ``outside_ns`` is the step's time in no op, ``updates`` the
    share (0 to 1) of each optimizer's range, ``waited`` that in which only a collective of the host was waited for.
    """

    calls: dict[str, list[float]]
    outside_ns: float
    updates: dict[str, float]
    waited: float


class Calls:
    """The ops that Python called and the nodes of the backward, inside the steps of one trace.

    ``rows`` are they in order of start; of each its ``cost`` (ns, on the device where the trace has device work, else
    on the host), and its ``whole_cost`` with the nodes of the backward that it made. ``forward`` are the indices of
    those on the thread of the steps that are no node, in order. Costs are totals over ``steps`` steps.
    """

    def __init__(
        self,
        trace: Trace,
        times: LineTimes | None = None,
        traced: Sequence[TracedLine] = (),
        typical: TypicalTimes | None = None,
    ) -> None:
        self.trace = trace
        self.frames = PythonFrames(trace, times, traced)
        backward = pair_backward(trace)
        rows, step, self.steps = _called(trace)
        self.rows, self._step = rows, step
        self._names: list[str] = [trace.names[code] for code in trace.name[rows].tolist()]
        self.on_device = bool(trace.device_rows.size)
        self._index = np.full(len(trace), -1, np.int64)
        self._index[rows] = np.arange(rows.size)
        #: Index of the called op that contains each row of the trace, itself included; -1 for none.
        self.of = self._index.copy()
        self._add_inner(self._index >= 0)
        self.is_node = backward.is_node[rows]
        self.node_cost: Ints = np.zeros(rows.size, np.int64)
        self.step_ns: int | None = None
        typical = typical or typical_times(trace)
        #: Usual share of a step of each optimizer's range.
        self.updates = typical.updates
        if self.on_device:
            self.cost = self._device_times()
        else:
            self.cost, outside_ns = self._host_times(typical)
            self.step_ns = round(int(self.cost.sum()) / self.steps + outside_ns)
        node, maker = self._index[backward.node], self.of[backward.maker]
        known = (node >= 0) & (maker >= 0)
        #: Index of the forward op that made each node; -1 where it is no node, or its maker is not known.
        self.maker = np.full(rows.size, -1, np.int64)
        self.maker[node[known]] = maker[known]
        self.node_cost = sum_by(maker[known], self.cost[node[known]], rows.size)
        self.whole_cost = self.cost + self.node_cost
        around = _ranges_around(trace, rows)
        main = self._main_thread()
        here = ~self.is_node & (trace.track[rows] == main)
        self.forward = np.flatnonzero(here & ~around)

    def _add_inner(self, is_called: Bools) -> None:
        """Write into ``of`` what is inside the calls."""
        trace = self.trace
        if not self.rows.size:
            return
        inner = trace.host_rows
        start = trace.start_ns[inner]
        inner = inner[(start >= trace.start_ns[self.rows[0]]) & (start <= trace.end_ns[self.rows].max())]
        inner = inner[~is_called[inner]]
        caller = nearest_above(trace, inner, is_called)
        self.of[inner] = np.where(caller >= 0, self._index[caller], -1)

    def name(self, index: int) -> str:
        return self._names[index]

    def places(self, indices: Sequence[int]) -> list[Location | None]:
        """The user's line of each of these calls; None where no frame is known."""
        rows = self.rows[np.asarray(indices, np.int64)]
        return self.places_of(rows)

    def places_of(self, rows: Ints) -> list[Location | None]:
        """The user's line of each of these rows of the trace."""
        found: list[Location | None] = [None] * rows.size
        frame = self.frames.around[rows]
        known = np.flatnonzero(frame >= 0)
        lines = self.frames.locations(frame[known], self.trace.start_ns[rows[known]])
        for place, at, row in zip(known.tolist(), lines, frame[known].tolist(), strict=True):
            first_line = self.frames.function(row).first_line
            found[place] = at if at.line is not None else msgspec.structs.replace(at, line=first_line)
        return found

    def _device_times(self) -> Ints:
        trace = self.trace
        work = trace.device_rows[trace.launch[trace.device_rows] >= 0]
        caller = self.of[trace.launch[work]]
        work, caller = work[caller >= 0], caller[caller >= 0]
        return sum_by(caller, trace.duration_ns[work], self.rows.size)

    def _host_times(self, typical: TypicalTimes) -> tuple[Ints, float]:
        trace, rows = self.trace, self.rows
        cost = trace.duration_ns[rows]
        for name, places in _by_name(trace, rows, self._step).items():
            shortest = typical.calls.get(name)
            if not shortest:
                continue
            for in_step in places:
                if len(shortest) == len(in_step):
                    cost[in_step] = np.minimum(cost[in_step], np.rint(shortest).astype(np.int64))
                else:
                    cost[in_step] = np.minimum(cost[in_step], round(float(np.mean(shortest))))
        return cost, typical.outside_ns

    def _main_thread(self) -> int:
        steps = whole_steps(self.trace)
        if steps.row.size:
            return int(steps.track[0])
        mine = self.rows[~self.is_node]
        if not mine.size:
            return -1
        spent = sum_by(
            self.trace.track[mine].astype(np.int64),
            self.trace.duration_ns[mine],
            len(self.trace.tracks),
        )
        return int(spent.argmax())


def typical_times(trace: Trace) -> TypicalTimes:
    """The shortest times over the steps of a trace."""
    rows, step, steps = _called(trace)
    duration = trace.duration_ns[rows]
    calls: dict[str, list[float]] = {}
    for name, places in _by_name(trace, rows, step).items():
        if len(places) == steps and len({len(in_step) for in_step in places}) == 1:
            calls[name] = np.stack([duration[in_step] for in_step in places]).min(axis=0).tolist()
        else:
            calls[name] = [float(np.median(duration[np.concatenate(places)]))]
    whole = whole_steps(trace)
    outside = 0.0
    if whole.row.size:
        mine = trace.track[rows] == whole.track[0]
        inside = sum_by(step[mine], duration[mine], whole.row.size)[:steps]
        outside = float(np.maximum(0, (whole.end_ns - whole.start_ns)[:steps] - inside).min())
    return TypicalTimes(calls, outside, usual_updates(trace, steps), usual_wait(trace, steps))


@once
def _called(trace: Trace) -> tuple[Ints, Ints, int]:
    """Ops that no op called, in order of start, the step of each, and how many steps they are of."""
    steps = whole_steps(trace)
    rows, step = steps_of_ops(trace)
    count = max(1, steps.row.size)
    upto = np.cumsum(np.bincount(step[step >= 0], minlength=count))
    count = max(1, int(np.searchsorted(upto, MOST_OPS, side="right")))
    kept = (step >= 0) & (step < count)
    rows, step = rows[kept], step[kept]
    outermost = nearest_above(trace, rows, trace.is_kind(Kind.OP)) < 0
    rows, step = rows[outermost], step[outermost]
    order = np.argsort(trace.start_ns[rows], kind="stable")
    return rows[order], step[order], count


def _by_name(trace: Trace, rows: Ints, step: Ints) -> dict[str, list[Ints]]:
    """Name -> for each step that calls it the indices of its calls, in order."""
    order = np.lexsort((np.arange(rows.size), step, trace.name[rows]))
    name, of = trace.name[rows][order], step[order]
    new = np.flatnonzero((name[1:] != name[:-1]) | (of[1:] != of[:-1])) + 1
    found: dict[str, list[Ints]] = defaultdict(list)
    for part in np.split(order, new):
        if part.size:
            found[trace.names[trace.name[rows[part[0]]]]].append(part)
    return found


def _ranges_around(trace: Trace, rows: Ints) -> Bools:
    """Whether each row lies in a range of an optimizer or of a loader: torch's own work, or another phase's."""
    named = [name.startswith(("Optimizer.", "enumerate(Data")) for name in trace.names]
    ranges = trace.is_kind(Kind.RANGE, Kind.OP) & np.array([*named, False])[trace.name]
    return nearest_above(trace, rows, ranges) >= 0
