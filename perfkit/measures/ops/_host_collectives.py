"""Collectives that the training thread waited for, by the line that began them."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np

from perfkit.measures._rows import find_rows, nearest_above, time_of
from perfkit.measures.ops._op_arguments import SIZES
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.results.patterns import HostCollective
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, Union, clip, without

#: The range of a collective while it runs, on a thread of its own where the host does the work (gloo).
RUNNING = re.compile(r"^gloo:")
#: The op that begins one, on the thread that trains.
BEGINS = re.compile(r"^c10d::")


def share_of_waiting(trace: Trace, steps: int) -> float:
    """The share of a step (median) in which the training thread only waited for a collective of the host."""
    waits = _waits(trace)
    whole = whole_steps(trace)
    if not whole.row.size:
        return 0.0
    each = [
        clip(waits, int(low), int(high)).length_ns / max(1, high - low)
        for low, high in zip(whole.start_ns[:steps], whole.end_ns[:steps], strict=True)
    ]
    return float(np.median(each))


def _waits(trace: Trace) -> Union:
    """When a collective of the host was running and the thread of the steps was in no other op."""
    running = find_rows(trace, RUNNING, Kind.RANGE)
    steps = whole_steps(trace)
    if not running.size or not steps.row.size:
        return Union(running[:0], running[:0])
    beginning = find_rows(trace, BEGINS, Kind.OP)
    talking = np.concatenate((running, beginning))
    is_op = trace.is_kind(Kind.OP)
    own = np.setdiff1d(np.flatnonzero(is_op & (trace.track == steps.track[0])), beginning)
    own = own[nearest_above(trace, own, is_op) < 0]
    return without(time_of(trace, talking), time_of(trace, own))


def find_host_collectives(calls: OpCalls, waited: float) -> tuple[HostCollective, ...]:
    """Collectives of the host, longest wait first.

    Args:
        calls: The ops of a trace.
        waited: The share of a step (0 to 1) that was spent waiting; divided among collectives by their number.
    """
    if waited <= 0 or calls.step_ns is None:
        return ()
    chosen = [i for i, name in enumerate(calls.names) if BEGINS.match(name)]
    if not chosen:
        return ()
    waited_ns = waited * calls.step_ns
    sizes = _sizes(calls.trace, calls.rows[chosen])
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, at in enumerate(calls.locations(chosen)):
        groups[calls.names[chosen[i]], at].append(i)
    found = [
        HostCollective(
            name=name.removeprefix("c10d::").removesuffix("_"),
            count=len(members) / calls.steps,
            waited_ns=round(waited_ns * len(members) / len(chosen)),
            bytes=sum(sizes[i] for i in members) // calls.steps if sizes is not None else None,
            at=at,
        )
        for (name, at), members in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.waited_ns))


def _sizes(trace: Trace, rows: Ints) -> list[int] | None:
    """Bytes of the first list of tensors of each of these ops, assumed to be float32; None without shapes."""
    dims = trace.fields(rows, ("Input Dims",))["Input Dims"].list()
    if not any(dims):
        return None
    found = []
    for one in dims:
        lists = one[0] if isinstance(one, list) and one and isinstance(one[0], list) else []
        shapes = [shape for shape in lists if isinstance(shape, list)]
        found.append(sum(int(np.prod(shape, dtype=np.float64)) * SIZES["float"] for shape in shapes))
    return found
