"""Host ops of a trace: what each costs on the host, on the device and in memory, and what an op costs at least."""

from __future__ import annotations

import numpy as np

from perfkit.measures._nested import sum_by, sum_inside, times_by_owner
from perfkit.measures._rows import mask_of
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
    duration = trace.duration_ns[rows]
    has_device = bool(trace.device_rows.size)
    backward = pair_backward(trace)
    costs = _Costs(trace, rows, caller, backward)

    is_name = np.bincount(trace.name[rows], minlength=len(trace.names)) > 0
    names = np.flatnonzero(is_name)
    place = (np.cumsum(is_name) - 1)[trace.name[rows]]
    n = names.size
    # Inclusive numbers of the calls, own numbers of everything.
    calls = np.flatnonzero(~_inner_overloads(place, costs.parent))
    of_call = place[calls]
    counts = np.bincount(of_call, minlength=n)
    totals = sum_by(of_call, duration[calls], n)
    owns = sum_by(place, times_by_owner(trace, rows, costs.parent), n)
    device = costs.device()
    devices = sum_by(of_call, device[calls], n)
    device_owns = sum_by(place[costs.launcher], costs.launched_ns, n)
    backward_devices = sum_by(of_call, costs.of_nodes(device[costs.node])[calls], n)
    del device  # a long trace has a million ops: 8 MB
    backwards = sum_by(of_call, costs.of_nodes(duration[costs.node])[calls], n)
    made_nodes = np.bincount(place[np.flatnonzero(costs.of_nodes(np.ones_like(costs.node)))], minlength=n) > 0
    memory = _memory_by_name(trace, is_op, costs, place, calls, n)
    table = [
        OpTime(
            name=trace.names[code],
            count=int(counts[i]),
            total_ns=int(totals[i]),
            self_ns=int(owns[i]),
            device_ns=int(devices[i]) if has_device else None,
            device_self_ns=int(device_owns[i]) if has_device else None,
            backward_ns=int(backwards[i]) if made_nodes[i] else None,
            backward_device_ns=int(backward_devices[i]) if made_nodes[i] and has_device else None,
            memory=memory[i] if memory is not None else None,
        )
        for i, code in enumerate(names.tolist())
    ]
    is_leaf = np.ones(len(trace), bool)
    called = caller[rows]
    is_leaf[called[called >= 0]] = False
    floor_ns = int(np.percentile(duration[is_leaf[rows]], 10))
    if steps.row.size:
        wall_ns = int((steps.end_ns - steps.start_ns).sum())
    else:
        wall_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
    return Ops(
        steps=max(1, steps.row.size),
        count=calls.size,
        wall_ns=wall_ns,
        rows=tuple(sorted(table, key=lambda op: -op.self_ns)),
        # Traces in whole us hold most small ops with no length at all.
        floor_ns=floor_ns or None,
        repeats=find_repeats(trace, is_op, caller, backward),
    )


def _inner_overloads(place: Ints, parent: Ints) -> Bools:
    """A mask of the ops that are all that an op of the same name called."""
    alike = np.flatnonzero((place == place[parent]) & (parent >= 0))
    children = np.bincount(parent + 1, minlength=1)[1:]
    inner = np.zeros(place.size, bool)
    inner[alike] = children[parent[alike]] == 1
    return inner


class _Costs:
    """What ops (by their place in ``rows``) launched, and which of them made which nodes of the backward.

    ``launcher`` is the op that launched each piece of device work, ``launched_ns`` how long that ran; ``maker`` the op
    that made each ``node``.
    """

    def __init__(self, trace: Trace, rows: Ints, caller: Ints, backward: Backward) -> None:
        #: One longer than the trace, so that "no row", -1, has no place either.
        self.index = np.full(len(trace) + 1, -1, np.int64)
        self.index[rows] = np.arange(rows.size)
        self.parent = self.index[caller[rows]]
        work = trace.device_rows[trace.launch[trace.device_rows] >= 0]
        launch = trace.launch[work]
        # The launch itself is no op: what is above it is the op that made it.
        launcher = self.index[caller[launch]]
        inside = launcher >= 0
        self.launcher, self.launched_ns = launcher[inside], trace.duration_ns[work[inside]]
        node, maker = self.index[backward.node], self.index[backward.maker]
        known = (node >= 0) & (maker >= 0)
        self.node, self.maker = node[known], maker[known]

    def device(self) -> Ints:
        """Time of the device work that each op launched, with the ops it called."""
        return sum_inside(self.launcher, self.launched_ns, self.parent)

    def of_nodes(self, values: Ints) -> Ints:
        """Sum of the values of the nodes that each op made, with the ops it called."""
        return sum_inside(self.maker, values, self.parent)


def _memory_by_name(
    trace: Trace, is_op: Bools, costs: _Costs, place: Ints, calls: Ints, n: int
) -> list[dict[str, MemoryChange]] | None:
    """Memory of each op's name by device; None where the trace has no memory events."""
    events, holders = find_allocators(trace, is_op)
    if not events.size:
        return None
    found: list[dict[str, MemoryChange]] = [{} for _ in range(n)]
    inside = holders >= 0
    events, holder = events[inside], costs.index[holders[inside]]
    for device, *own in changes_by_place(trace, events, holder, costs.parent.size):
        at = [np.flatnonzero(part) for part in own]
        sums = [sum_inside(some, part[some], costs.parent) for some, part in zip(at, own, strict=True)]
        allocated, freed = (sum_by(place[calls], part[calls], n) for part in sums)
        write_changes(found, device, allocated, freed, sum_by(place, own[0] - own[1], n))
    return found
