"""Ops by the shapes of their inputs, by module, line or step; by shape with what they compute and move."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfkit.limits.device_peaks import Peaks, peaks_of_device
from perfkit.measures._group_keys import group_times, keys_of
from perfkit.measures._nested import sum_by, sum_inside, times_by_owner
from perfkit.measures._rows import launched_work, mask_of
from perfkit.measures.device.roofline import TF32, place_point
from perfkit.measures.ops._op_kinds import op_kind
from perfkit.measures.ops._op_work import work_of
from perfkit.measures.ops.op_times import inner_overloads
from perfkit.measures.results.groups import GroupTime
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.steps._trace_steps import steps_of_ops
from perfkit.run.records import MachineLimits
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Ints

_ARGUMENTS = ("Input Dims", "Input dims", "Input type", "Concrete Inputs")


def op_groups(trace: Trace, by: str, found: Measurements) -> list[GroupTime]:
    """Ops of the steps by name and key, those with most own time first; empty without such keys.

    Args:
        trace: The trace.
        by: "shape", "module", "line" or "step".
        found: What was measured of the recording: `MachineLimits` are what ops of a host are held against.
    """
    rows, step = steps_of_ops(trace)
    rows = rows[step >= 0]
    if not rows.size:
        return []
    sums = _OpSums(trace, rows, found if by == "shape" else None)
    rows = rows[sums.calls]
    keys = keys_of(trace, rows, by)
    if keys is None:
        return []
    groups = group_times(trace, rows, trace.name[rows], keys, sums.of)
    return sorted(groups, key=lambda one: -(one.self_ns or 0))


class _OpSums:
    """Own time and device time of each op, and the work that follows from its arguments."""

    def __init__(self, trace: Trace, rows: Ints, found: Measurements | None) -> None:
        self._trace = trace
        #: One longer than the trace, so that "no row", -1, has no index either.
        index = np.full(len(trace) + 1, -1, np.int64)
        index[rows] = np.arange(rows.size)
        caller = trace.above(mask_of(trace, rows))
        parent = index[caller[rows]]
        own = times_by_owner(trace, rows, parent)
        self._whole = max(1, int(own.sum()))
        overload = inner_overloads(trace.name[rows].astype(np.int64), parent)
        self.calls = np.flatnonzero(~overload)
        outer = np.arange(rows.size)
        while (inner := overload[outer]).any():
            outer[inner] = parent[outer[inner]]
        # An overload is one call with the op that it is all of.
        self._own = sum_by(outer, own, rows.size)[self.calls]
        work = launched_work(trace)
        launcher = index[caller[trace.launch[work]]]
        work, launcher = work[launcher >= 0], launcher[launcher >= 0]
        self._device = None
        if trace.device_rows.size:
            self._device = sum_inside(launcher, trace.duration_ns[work], parent)[self.calls]
        self._rows = rows[self.calls]
        self._found = found
        if found is not None:
            self._fields = trace.fields(self._rows, _ARGUMENTS)
            in_tf32 = sum_inside(launcher, trace.name_matches(TF32)[work].astype(np.int64), parent)
            self._in_tf32 = in_tf32[self.calls] > 0
            devices = np.unique(trace.device[work]).tolist()
            used = next((one for one in trace.metadata.devices if one.id in devices[:1]), None)
            self._peaks: Peaks | None = peaks_of_device(used) if used is not None else None
        self._sorted: tuple[Ints, Ints] | None = None

    def of(self, number: int, group: Ints) -> dict[str, Any]:
        """The further fields of one group."""
        if self._sorted is None:
            order = np.argsort(group, kind="stable")
            self._sorted = order, np.append(0, np.cumsum(np.bincount(group)))
        order, bounds = self._sorted
        mine = order[bounds[number] : bounds[number + 1]]
        own_ns = int(self._own[mine].sum())
        device_ns = int(self._device[mine].sum()) if self._device is not None else None
        plain = {"self_ns": own_ns, "device_ns": device_ns, "share": own_ns / self._whole}
        return plain | (self._work(mine, device_ns) if self._found is not None else {})

    def _work(self, mine: Ints, device_ns: int | None) -> dict[str, Any]:
        """FLOPs, bytes and efficiency of calls with equal shapes, from the arguments of the first of them."""
        at = int(mine[0])
        name = self._trace.names[self._trace.name[self._rows[at]]]
        dims, old_dims, types, concrete = (
            field.values[code] if (code := int(field.codes[at])) >= 0 else None
            for field in (self._fields[key] for key in _ARGUMENTS)
        )
        work = work_of(name, dims if dims is not None else old_dims, types, concrete)
        if work is None:
            return {}
        if work.precision == "float32" and self._in_tf32[mine].any():
            work = work._replace(precision="tf32")
        spent_ns = device_ns if device_ns is not None else int(self._trace.duration_ns[self._rows[mine]].sum())
        found: dict[str, Any] = {"flops": work.flops, "bytes": work.bytes, "precision": work.precision}
        if not spent_ns:
            return found
        found["flops_per_s"] = work.flops * mine.size / spent_ns * 1e9
        found["bytes_per_s"] = work.bytes * mine.size / spent_ns * 1e9
        limits = self._found.get(MachineLimits) if self._found is not None else None
        if device_ns is not None and self._peaks is not None:
            point = place_point(name, "", work, int(mine.size), spent_ns, self._peaks)
            if point is not None:
                found |= {"efficiency": max(point.compute_share, point.memory_share or 0.0), "bound": point.bound}
        elif device_ns is None and limits is not None:
            limit_ns = limits.op_limit_ns(work.flops, work.bytes, work.precision, op_kind(name), work.depth)
            found["efficiency"] = limit_ns * mine.size / spent_ns
        return found
