"""All ops inside the calls, with the part of the cost that each has, and the line that it belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import sum_by
from perfkit.measures._rows import launched_work, nearest_above
from perfkit.measures.device._device_work import communicates
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Ints


class InnerOps:
    """The calls and all ops inside them: ``rows``, and of each its ``own`` part of its call's cost (a float, ns).

    ``in_node`` masks those in a node of the backward. ``caller`` is the index of the call whose line an op belongs to:
    its own call, or the one that made the node that it is in; -1 where that is not known.
    """

    def __init__(self, calls: OpCalls) -> None:
        trace = calls.trace
        self._calls = calls
        ops = trace.is_kind(Kind.OP)
        self.rows = calls.op_rows
        index = np.full(len(trace) + 1, -1, np.int64)
        index[self.rows] = np.arange(self.rows.size)
        of = calls.of[self.rows]
        self.in_node = calls.is_node[of]
        self.caller = np.where(self.in_node, calls.maker[of], of)
        if calls.on_device:
            # Kernels that compute: a collective lasts until another rank comes, and copies are found on their own.
            work = launched_work(trace)
            work = work[(trace.kind[work] == Kind.KERNEL) & ~communicates(trace, work)]
            work = work[calls.of[trace.launch[work]] >= 0]
            launcher = index[nearest_above(trace, trace.launch[work], ops)]
            inside = launcher >= 0
            self.own = sum_by(launcher[inside], trace.duration_ns[work[inside]], self.rows.size).astype(float)
            return
        duration = trace.duration_ns[self.rows]
        parent = index[nearest_above(trace, self.rows, ops)]
        inside = parent >= 0
        own = np.maximum(0, duration - sum_by(parent[inside], duration[inside], self.rows.size))
        self.own = calls.cost[of] * (own / np.maximum(trace.duration_ns[calls.rows[of]], 1))

    def named(self, names: Container[str]) -> Ints:
        """Indices of the ops of these names."""
        trace = self._calls.trace
        return np.flatnonzero(np.array([name in names for name in trace.names])[trace.name[self.rows]])

    def locations(self, chosen: Ints) -> list[Location | None]:
        """The lines of the ops at these indices."""
        caller = self.caller[chosen]
        found = self._calls.locations(np.maximum(caller, 0))
        return [at if known else None for at, known in zip(found, (caller >= 0).tolist(), strict=True)]


class KeyedSums:
    """Adds numbers up by key."""

    def __init__(self) -> None:
        self._sums: dict[Any, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, key: Any, **amounts: float) -> None:
        for name, amount in amounts.items():
            self._sums[key][name] += amount

    def per_step(self, steps: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Each key with its sums divided by ``steps``; all but counts are rounded."""
        for key, sums in self._sums.items():
            means = {name: amount / steps for name, amount in sums.items()}
            yield key, {name: mean if name == "count" else round(mean) for name, mean in means.items()}
