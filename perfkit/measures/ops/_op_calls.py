"""The ops that Python called, in order: what each costs with its part of the backward, and its line.

Only one step is recorded for lines, with shapes, and on a busy machine one step says little about time. So an op's time
is the shortest of the same call (the third ``aten::mul`` of a step) over the steps of the window, where the two are
alike: other programs only lengthen a call, by 10 ms where they take the processor away.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import sum_by
from perfkit.measures._rows import find_rows, launched_work, mask_of, nearest_above
from perfkit.measures._trace_cache import once
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.steps._trace_steps import main_thread, steps_of_ops, whole_steps
from perfkit.run.records import LineTimes, TracedLine
from perfkit.trace.columns import Field, Kind, Trace
from perfkit.trace.intervals import Bools, Ints

#: Ops that are measured; of more, those of the first steps stand for all. Their arguments are read again from the file.
MAX_OPS = 100_000
#: What describes the tensors that ops were called with.
TENSOR_ARGUMENTS = ("Input Dims", "Input type", "Input Strides")

LOADER_OR_OPTIMIZER = re.compile(r"^(?:Optimizer\.|enumerate\(Data)")


class TypicalTimes(NamedTuple):
    """Host times of the calls of a typical step.

    ``calls`` holds for each name the shortest time of its first, second ... call in a step, in ns; one time, the
    median, where the steps do not call it equally often. ``outside_ns`` is the step's time in no op, ``updates`` the
    share (0 to 1) of each optimizer's range, ``waited`` the share in which the step only waited for a collective.
    """

    calls: dict[str, list[float]]
    outside_ns: float
    updates: dict[str, float]
    waited: float


class OpCalls:
    """The ops that Python called and the nodes of the backward, inside the steps of one trace.

    ``rows`` are their rows in order of start, ``names`` their names, ``cost`` their times (ns, on the device where the
    trace has device work, else on the host), and ``whole_cost`` those with the nodes of the backward that they made
    (``node_cost``). ``forward`` are the indices of those on the thread of the steps that are no node, in order. Costs
    are totals over ``steps`` steps; ``step_ns`` is a typical step, None where costs are those of a device.

    ``of`` is for each row of the trace the index of the call that contains it, itself included, and ``maker`` for each
    call that is a node (``is_node``) the index of the forward op that made it; -1 for none.
    """

    def __init__(
        self, trace: Trace, typical: TypicalTimes, times: LineTimes | None = None, traced: Sequence[TracedLine] = ()
    ) -> None:
        self.trace = trace
        self.typical = typical
        self.frames = PythonFrames(trace, times, traced)
        self.rows, step, self.steps = called_ops(trace)
        self.names = [trace.names[code] for code in trace.name[self.rows].tolist()]
        self.on_device = bool(trace.device_rows.size)
        index = np.full(len(trace), -1, np.int64)
        index[self.rows] = np.arange(self.rows.size)
        self.of = self._containing(index)
        backward = pair_backward(trace)
        self.is_node = backward.is_node[self.rows]
        self.step_ns: int | None = None
        if self.on_device:
            work = launched_work(trace)
            caller = self.of[trace.launch[work]]
            self.cost = sum_by(caller[caller >= 0], trace.duration_ns[work[caller >= 0]], self.rows.size)
        else:
            self.cost = self._host_times(typical, step)
            self.step_ns = round(int(self.cost.sum()) / self.steps + typical.outside_ns)
        node, maker = index[backward.node], self.of[backward.maker]
        known = (node >= 0) & (maker >= 0)
        self.maker = np.full(self.rows.size, -1, np.int64)
        self.maker[node[known]] = maker[known]
        self.node_cost = sum_by(maker[known], self.cost[node[known]], self.rows.size)
        self.whole_cost = self.cost + self.node_cost
        # Ops in a range of an optimizer or a loader are torch's own work, or belong to another phase.
        others = mask_of(trace, find_rows(trace, LOADER_OR_OPTIMIZER, Kind.RANGE, Kind.OP))
        here = ~self.is_node & (trace.track[self.rows] == main_thread(trace, self.rows[~self.is_node]))
        self.forward = np.flatnonzero(here & (nearest_above(trace, self.rows, others) < 0))

    def _containing(self, index: Ints) -> Ints:
        """The index of the call that contains each row."""
        trace, is_called = self.trace, index >= 0
        of = index.copy()
        if self.rows.size:
            inner = trace.host_rows
            start = trace.start_ns[inner]
            inner = inner[(start >= trace.start_ns[self.rows[0]]) & (start <= trace.end_ns[self.rows].max())]
            inner = inner[~is_called[inner]]
            caller = nearest_above(trace, inner, is_called)
            of[inner] = np.where(caller >= 0, index[caller], -1)
        return of

    @cached_property
    def op_rows(self) -> Ints:
        """Rows of the calls and of all ops inside them."""
        return np.flatnonzero(self.trace.is_kind(Kind.OP) & (self.of >= 0))

    @cached_property
    def arguments(self) -> dict[str, Field]:
        """The arguments of `op_rows`, read from the file once for all measures; empty for a trace without shapes."""
        if not self.op_rows.size or self.trace.metadata.record_shapes is False:
            return {}
        # Numbers and flags say how much an op computes, which is asked on a host alone.
        keys = TENSOR_ARGUMENTS if self.on_device else (*TENSOR_ARGUMENTS, "Concrete Inputs")
        return self.trace.fields(self.op_rows, keys)

    def locations(self, indices: Sequence[int] | Ints) -> list[Location | None]:
        """The user's line of each of these calls; None where no frame is known."""
        return self.locations_of_rows(self.rows[np.asarray(indices, np.int64)])

    def locations_of_rows(self, rows: Ints) -> list[Location | None]:
        """The user's line of each of these rows of the trace; the function's first line where the line is unknown."""
        found: list[Location | None] = [None] * rows.size
        frame = self.frames.around[rows]
        known = np.flatnonzero(frame >= 0)
        lines = self.frames.locations(frame[known], self.trace.start_ns[rows[known]])
        for place, at, row in zip(known.tolist(), lines, frame[known].tolist(), strict=True):
            first_line = self.frames.function(row).first_line
            found[place] = at if at.line is not None else msgspec.structs.replace(at, line=first_line)
        return found

    def per_step(self, costs: Ints, indices: Sequence[int] | Ints) -> int:
        """The sum of these calls' costs per step."""
        return int(costs[np.asarray(indices, np.int64)].sum()) // self.steps

    def _host_times(self, typical: TypicalTimes, step: Ints) -> Ints:
        cost = self.trace.duration_ns[self.rows]
        for name, steps in calls_by_name(self.trace, self.rows, step).items():
            shortest = typical.calls.get(name)
            if not shortest:
                continue
            for calls in steps:
                alike = len(shortest) == len(calls)
                usual = np.rint(shortest).astype(np.int64) if alike else round(float(np.mean(shortest)))
                cost[calls] = np.minimum(cost[calls], usual)
        return cost


@once
def called_ops(trace: Trace) -> tuple[Ints, Ints, int]:
    """Ops that no op called, in order of start, the step of each, and how many steps they are of."""
    steps = whole_steps(trace)
    rows, step = steps_of_ops(trace)
    count = max(1, steps.row.size)
    upto = np.cumsum(np.bincount(step[step >= 0], minlength=count))
    count = max(1, int(np.searchsorted(upto, MAX_OPS, side="right")))
    kept: Bools = (step >= 0) & (step < count)
    rows, step = rows[kept], step[kept]
    outermost = nearest_above(trace, rows, trace.is_kind(Kind.OP)) < 0
    rows, step = rows[outermost], step[outermost]
    order = np.argsort(trace.start_ns[rows], kind="stable")
    return rows[order], step[order], count


def calls_by_name(trace: Trace, rows: Ints, step: Ints) -> dict[str, list[Ints]]:
    """Name -> for each step that calls it the indices of its calls, in order."""
    order = np.lexsort((np.arange(rows.size), step, trace.name[rows]))
    name, of = trace.name[rows][order], step[order]
    new = np.flatnonzero((name[1:] != name[:-1]) | (of[1:] != of[:-1])) + 1
    found: dict[str, list[Ints]] = defaultdict(list)
    for part in np.split(order, new):
        if part.size:
            found[trace.names[trace.name[rows[part[0]]]]].append(part)
    return found
