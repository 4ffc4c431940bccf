"""Device work and API calls by module, line, step, or the shapes of the op that launched them."""

from __future__ import annotations

import numpy as np

from perfkit.measures._group_keys import group_times, keys_of
from perfkit.measures._rows import name_codes
from perfkit.measures.device._device_work import counted_work
from perfkit.measures.device._origins import launching_ops
from perfkit.measures.host.os_calls import os_calls
from perfkit.measures.results.groups import GroupTime
from perfkit.measures.steps._trace_steps import in_steps
from perfkit.trace.columns import Kind, Trace


def work_groups(trace: Trace, by: str, *kinds: Kind) -> list[GroupTime]:
    """Device work of these kinds in the steps by name and key, longest total first; empty without such keys.

    Args:
        trace: The trace.
        by: "shape", "module", "line" or "step". A step has what it launched.
        kinds: `Kind.KERNEL`, `Kind.COPY`, `Kind.MEMSET`.
    """
    work = counted_work(trace)
    rows = work[np.isin(trace.kind[work], [int(kind) for kind in kinds])]
    op = launching_ops(trace, rows)
    keys = keys_of(trace, op if by == "shape" else trace.launch[rows], by)
    if keys is None:
        return []
    if by != "shape":
        return group_times(trace, rows, trace.name[rows], keys)
    op_names = name_codes(trace, op)

    def of_op(number: int, group: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, str | None]:
        code = int(op_names[int(np.argmax(group == number))])
        return {"op": trace.names[code] if code >= 0 else None}

    return group_times(trace, rows, trace.name[rows], keys, of_op)


def call_groups(trace: Trace, by: str) -> list[GroupTime]:
    """Calls of the device's API in the steps by name and key, longest total first; empty without such keys."""
    rows = np.flatnonzero(in_steps(trace) & trace.is_kind(Kind.RUNTIME) & ~os_calls(trace))
    keys = keys_of(trace, rows, by)
    return group_times(trace, rows, trace.name[rows], keys) if keys is not None else []
