"""Optimizer steps by how they update parameters, and collectives that the training thread waited for."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit._location import Location
from perfkit.measures._rows import mask_of, nearest_above
from perfkit.measures.ops._op_work import SIZES
from perfkit.measures.results.patterns import HostCollective, OptimizerUpdate
from perfkit.measures.steps._trace_steps import NODE, step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints, Union, clip, union, without

if TYPE_CHECKING:
    from perfkit.measures.ops._op_calls import Calls, TypicalTimes

UPDATE = re.compile(r"^Optimizer\.step#(.+?)(?:\.step)?$")
#: The range of a collective while it runs, on a thread of its own where the host does the work (gloo).
HOST_COLLECTIVE = re.compile(r"^gloo:")
#: The op that begins one, on the thread that trains.
BEGINS = re.compile(r"^c10d::")


def update_rows(trace: Trace) -> Ints:
    """Rows of the ranges of optimizer steps."""
    named = np.array([*(UPDATE.match(name) is not None for name in trace.names), False])
    return np.flatnonzero(trace.is_kind(Kind.RANGE, Kind.OP) & named[trace.name])


def _after_closures(trace: Trace, rows: Ints) -> Ints:
    """When each optimizer step begins to update: behind the backward of a closure that it was given, in ns.

    Lightning's steps have a closure that does the whole training step; with plain ones it is the range's own start.
    """
    begins = trace.start_ns[rows].copy()
    if not rows.size:
        return begins
    is_node = np.array([*(NODE.match(name) is not None for name in trace.names), False])
    nodes = np.flatnonzero(trace.is_kind(Kind.RANGE, Kind.OP) & is_node[trace.name])
    order = np.argsort(begins, kind="stable")
    at = np.searchsorted(begins[order], trace.start_ns[nodes], "right") - 1
    update = order[np.maximum(at, 0)]
    inside = (at >= 0) & (trace.end_ns[nodes] <= trace.end_ns[rows][update])
    np.maximum.at(begins, update[inside], trace.end_ns[nodes][inside])
    return begins


def usual_updates(trace: Trace, steps: int) -> dict[str, float]:
    """Optimizer -> the share of a step (median) that its range takes; its time in ns where there are no steps."""
    rows = update_rows(trace)
    found = {}
    whole = whole_steps(trace)
    updating_ns = trace.end_ns[rows] - _after_closures(trace, rows)
    for code in np.unique(trace.name[rows]).tolist():
        mine = rows[trace.name[rows] == code]
        duration = updating_ns[trace.name[rows] == code]
        if not whole.row.size:
            found[trace.names[code]] = float(duration.sum())
            continue
        step = step_of(whole, trace.start_ns[mine])
        sums = np.bincount(step[step >= 0], weights=duration[step >= 0], minlength=whole.row.size)
        shares = (sums / np.maximum(1, whole.end_ns - whole.start_ns))[:steps]
        taken = shares[shares > 0]
        # Not every step updates where gradients are accumulated.
        found[trace.names[code]] = float(np.median(taken)) * taken.size / shares.size if taken.size else 0.0
    return found


def usual_wait(trace: Trace, steps: int) -> float:
    """The share of a step (median) in which the training thread had only a collective of the host to wait for."""
    waits = _waits(trace)
    whole = whole_steps(trace)
    if not whole.row.size:
        return 0.0
    each = [
        clip(waits, int(low), int(high)).length_ns / max(1, high - low)
        for low, high in zip(whole.start_ns[:steps], whole.end_ns[:steps], strict=True)
    ]
    return float(np.median(each))


def measure_updates(calls: Calls) -> tuple[OptimizerUpdate, ...]:
    """The optimizers whose steps a trace holds, longest first."""
    trace = calls.trace
    rows = update_rows(trace)
    steps = whole_steps(trace)
    if steps.row.size:
        step = step_of(steps, trace.start_ns[rows])
        rows = rows[(step >= 0) & (step < calls.steps)]
    if not rows.size:
        return ()
    of_step_ns = calls.step_ns
    if steps.row.size and of_step_ns is None:
        of_step_ns = int((steps.end_ns - steps.start_ns).mean())
    is_update = mask_of(trace, rows)
    begins = np.zeros(len(trace), np.int64)
    begins[rows] = _after_closures(trace, rows)
    inside = nearest_above(trace, calls.rows, is_update)
    inside = np.where(trace.start_ns[calls.rows] >= begins[np.maximum(inside, 0)], inside, -1)
    found = []
    for code in np.unique(trace.name[rows]).tolist():
        mine = rows[trace.name[rows] == code]
        members = np.flatnonzero((inside >= 0) & (trace.name[np.maximum(inside, 0)] == code))
        names = Counter(calls.name(i) for i in members.tolist())
        name = trace.names[code]
        caller = calls.places_of(mine[:1])[0]
        bodies: Counter[Location] = Counter()
        for i, place in zip(members.tolist(), calls.places(members.tolist()), strict=True):
            if place is not None and place.owner == "user" and place != caller:
                bodies[place] += int(calls.cost[i])
        host_ns = round(calls.updates.get(name, 0.0) * (of_step_ns or 1))
        launched = _kernels_below(trace, is_update, begins, code) if calls.on_device else None
        found.append(
            OptimizerUpdate(
                name=match[1] if (match := UPDATE.match(name)) else name,
                host_ns=host_ns,
                ops=members.size / calls.steps,
                foreach=sum(n for one, n in names.items() if "_foreach_" in one) / calls.steps,
                fused=sum(n for one, n in names.items() if "_fused_" in one) / calls.steps,
                op_ns=int(calls.cost[members].sum()) // calls.steps,
                device_ns=launched[0] // calls.steps if launched is not None else None,
                kernels=launched[1] / calls.steps if launched is not None else None,
                at=caller,
                body=bodies.most_common(1)[0][0] if bodies else None,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.host_ns))


def _kernels_below(trace: Trace, is_update: Bools, begins: Ints, code: int) -> tuple[int, int]:
    """Device time and number of the kernels launched in the ranges of this name, behind their closures."""
    work = trace.device_rows[trace.launch[trace.device_rows] >= 0]
    above = nearest_above(trace, trace.launch[work], is_update)
    mine = (above >= 0) & (trace.name[np.maximum(above, 0)] == code)
    work = work[mine & (trace.start_ns[trace.launch[work]] >= begins[np.maximum(above, 0)])]
    return int(trace.duration_ns[work].sum()), int(work.size)


def _waits(trace: Trace) -> Union:
    """When a collective of the host was running and the thread of the steps was in no other op."""
    hosts = np.array([*(HOST_COLLECTIVE.match(name) is not None for name in trace.names), False])
    begins = np.array([*(BEGINS.match(name) is not None for name in trace.names), False])
    running = np.flatnonzero(trace.is_kind(Kind.RANGE) & hosts[trace.name])
    ops = trace.is_kind(Kind.OP)
    beginning = np.flatnonzero(ops & begins[trace.name])
    steps = whole_steps(trace)
    if not running.size or not steps.row.size:
        none = np.zeros(0, np.int64)
        return Union(none, none)
    talking = np.concatenate((running, beginning))
    own = np.flatnonzero(ops & ~begins[trace.name] & (trace.track == steps.track[0]) & (trace.above(ops) < 0))
    return without(union(trace.start_ns[talking], trace.end_ns[talking]), union(trace.start_ns[own], trace.end_ns[own]))


def measure_collectives(calls: Calls, typical: TypicalTimes | None) -> tuple[HostCollective, ...]:
    """Collectives of the host by the line that began them; the time waited is shared out by their number."""
    trace = calls.trace
    waited = typical.waited if typical is not None else usual_wait(trace, calls.steps)
    if waited <= 0 or calls.step_ns is None:
        return ()
    chosen = [i for i in range(calls.rows.size) if BEGINS.match(calls.name(i))]
    if not chosen:
        return ()
    waited_ns = waited * calls.step_ns
    sizes = _sizes(trace, calls.rows[chosen])
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, place in enumerate(calls.places(chosen)):
        groups[calls.name(chosen[i]), place].append(i)
    found = [
        HostCollective(
            name=name.removeprefix("c10d::").removesuffix("_"),
            count=len(members) / calls.steps,
            waited_ns=round(waited_ns * len(members) / len(chosen)),
            bytes=sum(sizes[i] for i in members) // calls.steps if sizes is not None else None,
            at=place,
        )
        for (name, place), members in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.waited_ns))


def _sizes(trace: Trace, rows: Ints) -> list[int] | None:
    """Bytes of the first list of tensors of each of these ops, whose type is taken for float32; None without shapes."""
    dims = trace.fields(rows, ("Input Dims",))["Input Dims"].list()
    if not any(dims):
        return None
    found = []
    for one in dims:
        lists = one[0] if isinstance(one, list) and one and isinstance(one[0], list) else []
        shapes = [shape for shape in lists if isinstance(shape, list)]
        found.append(sum(int(np.prod(shape, dtype=np.float64)) * SIZES["float"] for shape in shapes))
    return found
