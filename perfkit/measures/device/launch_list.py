"""Every kernel, copy and memset by itself, with how and by what it was launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perfkit.measures.device._device_work import counted_work
from perfkit.measures.device._origins import launching_ops, lines_of
from perfkit.measures.results.groups import DeviceLaunch
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Ints

_ARGUMENTS = ("grid", "block", "registers per thread", "shared memory")


def list_launches(trace: Trace) -> Iterator[DeviceLaunch]:
    """The device work of the steps (without steps: of the trace) in order of start.

    Raises:
        TraceError: the file was changed or removed since it was read.
    """
    rows = counted_work(trace)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    if not rows.size:
        return
    launch, steps = trace.launch[rows], whole_steps(trace)
    step = np.where(launch >= 0, step_of(steps, trace.start_ns[launch]), -1).tolist()
    ops, numbers = launching_ops(trace, rows).tolist(), steps.number.tolist()
    launches, place = np.unique(launch, return_inverse=True)
    lines, place = lines_of(trace, launches), place.tolist()
    arguments = _arguments(trace, rows)
    first_ns = int(trace.start_ns[rows[0]])
    for i, (row, call) in enumerate(zip(rows.tolist(), launch.tolist(), strict=True)):
        start_ns, duration_ns, size = (int(column[row]) for column in (trace.start_ns, trace.duration_ns, trace.bytes))
        yield DeviceLaunch(
            name=trace.names[trace.name[row]],
            start_ns=start_ns - first_ns,
            duration_ns=duration_ns,
            device=int(trace.device[row]),
            stream=stream if (stream := int(trace.stream[row])) >= 0 else None,
            step=numbers[step[i]] if step[i] >= 0 else None,
            call=trace.names[trace.name[call]] if call >= 0 else None,
            latency_ns=max(0, start_ns - int(trace.end_ns[call])) if call >= 0 else None,
            op=trace.names[trace.name[ops[i]]] if ops[i] >= 0 else None,
            at=lines[place[i]],
            bytes=size if size >= 0 else None,
            bytes_per_s=size / duration_ns * 1e9 if size >= 0 and duration_ns else None,
            correlation=correlation if (correlation := int(trace.correlation[row])) > 0 else None,
            **arguments[i],
        )


def _arguments(trace: Trace, rows: Ints) -> list[dict[str, Any]]:
    """Grid, block, registers and shared memory of each row, where it has them."""
    fields = trace.fields(rows, _ARGUMENTS)
    grids, blocks = (fields[key].list() for key in _ARGUMENTS[:2])
    registers, shared = (fields[key].numbers().tolist() for key in _ARGUMENTS[2:])
    return [
        {
            "grid": _size(grids[i]),
            "block": _size(blocks[i]),
            "registers": int(registers[i]) if 0 < registers[i] < 2**31 else None,
            "shared_bytes": int(shared[i]) if 0 <= shared[i] < 2**31 else None,
        }
        for i in range(rows.size)
    ]


def _size(value: Any) -> tuple[int, int, int] | None:
    whole = isinstance(value, list) and len(value) == 3 and all(type(one) is int and 0 < one < 2**31 for one in value)
    return (value[0], value[1], value[2]) if whole else None
