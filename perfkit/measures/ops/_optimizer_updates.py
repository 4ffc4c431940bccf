"""Steps of optimizers by how they update parameters: one op per parameter, lists of tensors, or fused."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from perfkit._location import Location
from perfkit.measures._rows import find_rows, launched_work, mask_of, nearest_above
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.results.patterns import OptimizerUpdate
from perfkit.measures.steps._closures import after_closures
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

UPDATE = re.compile(r"^Optimizer\.step#(.+?)(?:\.step)?$")


def _update_rows(trace: Trace) -> Ints:
    return find_rows(trace, UPDATE, Kind.RANGE, Kind.OP)


def shares_of_updates(trace: Trace, steps: int) -> dict[str, float]:
    """Optimizer -> the share of a step (median) that its range takes; its time in ns where there are no steps."""
    rows = _update_rows(trace)
    whole = whole_steps(trace)
    updating_ns = trace.end_ns[rows] - after_closures(trace, rows)
    found = {}
    for code in np.unique(trace.name[rows]).tolist():
        mine = trace.name[rows] == code
        duration = updating_ns[mine]
        if not whole.row.size:
            found[trace.names[code]] = float(duration.sum())
            continue
        step = step_of(whole, trace.start_ns[rows[mine]])
        sums = np.bincount(step[step >= 0], weights=duration[step >= 0], minlength=whole.row.size)
        shares = (sums / np.maximum(1, whole.end_ns - whole.start_ns))[:steps]
        taken = shares[shares > 0]
        # Not every step updates where gradients are accumulated.
        found[trace.names[code]] = float(np.median(taken)) * taken.size / shares.size if taken.size else 0.0
    return found


def find_updates(calls: OpCalls, shares: dict[str, float]) -> tuple[OptimizerUpdate, ...]:
    """The optimizers whose steps are in a trace, longest first.

    Args:
        calls: The ops of a trace.
        shares: Optimizer -> its share of a step, see `shares_of_updates`.
    """
    trace = calls.trace
    rows = _update_rows(trace)
    steps = whole_steps(trace)
    if steps.row.size:
        step = step_of(steps, trace.start_ns[rows])
        rows = rows[(step >= 0) & (step < calls.steps)]
    if not rows.size:
        return ()
    step_ns = calls.step_ns
    if steps.row.size and step_ns is None:
        step_ns = int((steps.end_ns - steps.start_ns).mean())
    begins = np.zeros(len(trace), np.int64)
    begins[rows] = after_closures(trace, rows)
    is_update = mask_of(trace, rows)

    def update_around(inner: Ints) -> Ints:
        """The optimizer step that each of these rows is in, after its closure; -1 for none."""
        above = nearest_above(trace, inner, is_update)
        return np.where(trace.start_ns[inner] >= begins[np.maximum(above, 0)], above, -1)

    of_call = update_around(calls.rows)
    work = launched_work(trace)
    of_work = update_around(trace.launch[work])
    duration = (trace.end_ns - begins)[rows]
    # Two optimizers of one class, as of a GAN, are two updates: each has a line that calls it.
    callers = calls.locations_of_rows(rows)
    found = []
    for code, caller in dict.fromkeys(zip(trace.name[rows].tolist(), callers, strict=True)):
        name = trace.names[code]
        here = np.array([one == caller for one in callers]) & (trace.name[rows] == code)
        members = np.flatnonzero(np.isin(of_call, rows[here]))
        kernels = work[np.isin(of_work, rows[here])]
        names = Counter(calls.names[i] for i in members.tolist())
        bodies: Counter[Location] = Counter()
        for i, at in zip(members.tolist(), calls.locations(members), strict=True):
            if at is not None and at.owner == "user" and at != caller:
                bodies[at] += int(calls.cost[i])
        of_class = int(duration[trace.name[rows] == code].sum())
        share = shares.get(name, 0.0) * int(duration[here].sum()) / max(1, of_class)
        found.append(
            OptimizerUpdate(
                name=match[1] if (match := UPDATE.match(name)) else name,
                host_ns=round(share * (step_ns or 1)),
                ops=members.size / calls.steps,
                foreach=sum(n for one, n in names.items() if "_foreach_" in one) / calls.steps,
                fused=sum(n for one, n in names.items() if "_fused_" in one) / calls.steps,
                op_ns=calls.per_step(calls.cost, members),
                device_ns=int(trace.duration_ns[kernels].sum()) // calls.steps if calls.on_device else None,
                kernels=kernels.size / calls.steps if calls.on_device else None,
                at=caller,
                body=bodies.most_common(1)[0][0] if bodies else None,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.host_ns))
