"""Host ops of a trace: what each costs on the host, on the device and in memory, and the minimum cost of an op."""

from __future__ import annotations

import numpy as np

from perfkit.measures._durations import spread_by
from perfkit.measures._nested import sum_by, sum_inside, times_by_owner
from perfkit.measures._rows import launched_work, mask_of
from perfkit.measures.memory._allocations import changes_by_place, find_allocators, write_changes
from perfkit.measures.ops._backward import Backward, pair_backward
from perfkit.measures.ops._op_loops import find_repeats
from perfkit.measures.results.host import Ops, OpTime
from perfkit.measures.results.memory import MemoryChange
from perfkit.measures.steps._trace_steps import steps_of_ops, whole_steps
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Bools, Ints


def measure_op_times(trace: Trace) -> Ops | None:
    """Cost of ops by name, over the steps if there are any (a trace without steps counts as one); None without ops.

    An op that does nothing but call one of its own name (an overload) is one call with it, as in torch's tables.
    Other calls of an op inside itself count twice in inclusive numbers (``total_ns``, ``device_ns``, memory). Self
    times never do: they sum to the time in which any op was open, thread by thread, and ``device_self_ns`` to the
    device work launched from ops. Device times are sums, not unions: work of two streams at once counts twice.
    """
    steps = whole_steps(trace)
    rows, step = steps_of_ops(trace)
    rows = rows[step >= 0]
    if not rows.size:
        return None
    is_op = mask_of(trace, rows)
    caller = trace.above(is_op)
    backward = pair_backward(trace)
    table = _OpTable(trace, rows, caller, backward)
    floor_ns = int(np.percentile(trace.duration_ns[rows[table.is_leaf]], 10))
    if steps.row.size:
        wall_ns = int((steps.end_ns - steps.start_ns).sum())
    else:
        wall_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
    return Ops(
        steps=max(1, steps.row.size),
        count=table.calls.size,
        wall_ns=wall_ns,
        rows=tuple(sorted(table.times(is_op), key=lambda op: -op.self_ns)),
        # In traces in whole us most small ops have no length at all.
        floor_ns=floor_ns or None,
        repeats=find_repeats(trace, is_op, caller, backward),
    )


def inner_overloads(place: Ints, parent: Ints) -> Bools:
    """Which ops are all that an op of their own name does (an overload): one call with it.

    Args:
        place: The number of each op's name.
        parent: The index of the op that called each, -1 for none.
    """
    children = np.bincount(parent + 1, minlength=place.size + 1)[1:]
    return np.asarray((place == place[parent]) & (parent >= 0) & (children[parent] == 1), bool)


class _OpTable:
    """Sums of ops by name.

    ``rows`` are the ops, ``place`` the number of each one's name, ``parent`` the index of the op that called each (-1
    for none), ``calls`` the indices of all but inner overloads, for inclusive numbers.
    """

    def __init__(self, trace: Trace, rows: Ints, caller: Ints, backward: Backward) -> None:
        self.trace, self.rows = trace, rows
        is_name = np.bincount(trace.name[rows], minlength=len(trace.names)) > 0
        self.names = np.flatnonzero(is_name).tolist()
        self.place = (np.cumsum(is_name) - 1)[trace.name[rows]]
        #: One longer than the trace, so that "no row", -1, has no index either.
        self.index = np.full(len(trace) + 1, -1, np.int64)
        self.index[rows] = np.arange(rows.size)
        self.parent = self.index[caller[rows]]
        children = np.bincount(self.parent + 1, minlength=rows.size + 1)[1:]
        self.is_leaf = children == 0
        self.calls = np.flatnonzero(~inner_overloads(self.place, self.parent))
        work = launched_work(trace)
        # The launch itself is no op: what is above it is the op that made it.
        launcher = self.index[caller[trace.launch[work]]]
        self._launcher, self._launched_ns = launcher[launcher >= 0], trace.duration_ns[work[launcher >= 0]]
        node, maker = self.index[backward.node], self.index[backward.maker]
        known = (node >= 0) & (maker >= 0)
        self._node, self._maker = node[known], maker[known]

    def _inclusive(self, at: Ints, values: Ints) -> Ints:
        """By name: the sum of the values at its calls and at all ops that these called."""
        return self._of_calls(sum_inside(at, values, self.parent))

    def _of_calls(self, values: Ints) -> Ints:
        return sum_by(self.place[self.calls], values[self.calls], len(self.names))

    def _own(self, at: Ints, values: Ints) -> Ints:
        return sum_by(self.place[at], values, len(self.names))

    def times(self, is_op: Bools) -> list[OpTime]:
        """The times of each name."""
        trace, rows = self.trace, self.rows
        duration = trace.duration_ns[rows]
        spread = spread_by(self.place[self.calls], duration[self.calls], len(self.names))
        counts, totals = spread["count"], spread["total_ns"]
        owns = self._own(np.arange(rows.size), times_by_owner(trace, rows, self.parent))
        device = sum_inside(self._launcher, self._launched_ns, self.parent)
        devices, device_owns = self._of_calls(device), self._own(self._launcher, self._launched_ns)
        backward_devices = self._inclusive(self._maker, device[self._node])
        del device  # a long trace has a million ops: 8 MB
        backwards = self._inclusive(self._maker, duration[self._node])
        makes_nodes = self._own(self._makers(), np.ones(1, np.int64)) > 0
        memory = self._memory(is_op)
        of_calls = {name: spread[name].tolist() for name in ("median_ns", "min_ns", "max_ns", "deviation_ns")}
        whole = max(1, int(owns.sum()))
        has_device = bool(trace.device_rows.size)
        return [
            OpTime(
                name=trace.names[code],
                count=int(counts[i]),
                total_ns=int(totals[i]),
                self_ns=int(owns[i]),
                device_ns=int(devices[i]) if has_device else None,
                device_self_ns=int(device_owns[i]) if has_device else None,
                backward_ns=int(backwards[i]) if makes_nodes[i] else None,
                backward_device_ns=int(backward_devices[i]) if makes_nodes[i] and has_device else None,
                memory=memory[i] if memory is not None else None,
                share=int(owns[i]) / whole,
                **{name: values[i] for name, values in of_calls.items()},
            )
            for i, code in enumerate(self.names)
        ]

    def _makers(self) -> Ints:
        """The ops that made nodes, and all that called these."""
        return np.flatnonzero(sum_inside(self._maker, np.ones_like(self._maker), self.parent))

    def _memory(self, is_op: Bools) -> list[dict[str, MemoryChange]] | None:
        """Memory of each name by device; None where the trace has no memory events."""
        events, holders = find_allocators(self.trace, is_op)
        if not events.size:
            return None
        found: list[dict[str, MemoryChange]] = [{} for _ in self.names]
        events, holder = events[holders >= 0], self.index[holders[holders >= 0]]
        for device, *own in changes_by_place(self.trace, events, holder, self.rows.size):
            at = [np.flatnonzero(part) for part in own]
            allocated, freed = (self._inclusive(some, part[some]) for some, part in zip(at, own, strict=True))
            write_changes(found, device, allocated, freed, self._own(np.arange(self.rows.size), own[0] - own[1]))
        return found
