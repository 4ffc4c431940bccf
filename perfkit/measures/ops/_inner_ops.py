"""All ops inside the calls, with the part of the cost that each has, and the line that it belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import Any

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import sum_by
from perfkit.measures._rows import nearest_above
from perfkit.measures.device._device_work import communicates
from perfkit.measures.ops._op_calls import Calls
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints


class InnerOps:
    """The calls and all ops inside them: ``rows``, of each its ``own`` part of its call's cost (a float, ns).

    ``place`` is the index of the call whose line it belongs to: its call, or the one that made the node that it is in;
    -1 where that is not known.
    """

    def __init__(self, calls: Calls) -> None:
        trace = calls.trace
        ops = trace.is_kind(Kind.OP)
        self.rows = np.flatnonzero(ops & (calls.of >= 0))
        index = np.full(len(trace), -1, np.int64)
        index[self.rows] = np.arange(self.rows.size)
        of = calls.of[self.rows]
        self.in_node = calls.is_node[of]
        self.place = np.where(self.in_node, calls.maker[of], of)
        if calls.on_device:
            # What computes: a collective lasts until another rank comes, and copies are told by themselves.
            work = trace.device_rows[trace.kind[trace.device_rows] == Kind.KERNEL]
            work = work[(trace.launch[work] >= 0) & ~communicates(trace, work)]
            work = work[calls.of[trace.launch[work]] >= 0]
            launcher = nearest_above(trace, trace.launch[work], ops)
            launcher = np.where(launcher >= 0, index[launcher], -1)
            work, launcher = work[launcher >= 0], launcher[launcher >= 0]
            self.own = sum_by(launcher, trace.duration_ns[work], self.rows.size).astype(float)
            return
        duration = trace.duration_ns[self.rows]
        caller = nearest_above(trace, self.rows, ops)
        parent = np.where(caller >= 0, index[caller], -1)
        inside = parent >= 0
        own = np.maximum(0, duration - sum_by(parent[inside], duration[inside], self.rows.size))
        whole = trace.duration_ns[calls.rows[of]]
        self.own = calls.cost[of] * (own / np.maximum(whole, 1))

    def named(self, trace: Trace, names: Container[str]) -> Ints:
        """Indices of the ops of these names."""
        return np.flatnonzero(np.array([name in names for name in trace.names])[trace.name[self.rows]])

    def places(self, calls: Calls, chosen: Ints) -> list[Location | None]:
        """The lines of the ops at these indices."""
        at = self.place[chosen]
        found = calls.places(np.maximum(at, 0).tolist())
        return [place if known else None for place, known in zip(found, (at >= 0).tolist(), strict=True)]


class KeyedSums:
    """Adds numbers up by key."""

    def __init__(self) -> None:
        self.by: dict[Any, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, key: Any, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.by[key][name] += amount
