"""Copies and memsets by direction and kind of memory: bytes, bandwidth, overlap, and how long the host waited."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from perfkit.measures._durations import spread_by
from perfkit.measures._rows import find_rows, mask_of, nearest_above
from perfkit.measures.device._device_work import DeviceWork, device_work
from perfkit.measures.host._blocking_calls import BLOCKING
from perfkit.measures.results.device import CopyTime
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, covered_before

DIRECTION = re.compile(r"HtoD|DtoH|DtoD")
#: ``Memcpy HtoD (Pageable -> Device)`` and ``Memset (Device)``.
MEMORY = re.compile(r"\((\w+)(?:\s*->\s*(\w+))?\)")


def direction_of(trace: Trace, rows: Ints) -> npt.NDArray[np.str_]:
    """``HtoD``, ``DtoH``, ``DtoD`` or ``other`` for each of these copies."""
    table = np.array([match[0] if (match := DIRECTION.search(name)) else "other" for name in trace.names], "<U5")
    return table[trace.name[rows]]


def measure_copies(trace: Trace) -> tuple[CopyTime, ...]:
    """Copies and memsets by device, direction and kind of memory, longest time first; in the window of `DeviceWork`."""
    works = device_work(trace)
    if not works:
        return ()
    until = _host_waited_until(trace)
    found = [one for work in works for one in _measure(trace, work, until)]
    return tuple(sorted(found, key=lambda one: -one.total_ns))


def _measure(trace: Trace, work: DeviceWork, until: Ints) -> Iterator[CopyTime]:
    rows = work.counted[np.isin(trace.kind[work.counted], (Kind.COPY, Kind.MEMSET))]
    starts, ends = np.maximum(trace.start_ns[rows], work.low), np.minimum(trace.end_ns[rows], work.high)
    hidden = covered_before(work.compute, ends) - covered_before(work.compute, starts)
    waited = until[rows] >= 0
    launch = trace.launch[rows]
    blocked = np.where(waited, until[rows] - trace.start_ns[launch], 0)
    for code in np.unique(trace.name[rows]).tolist():
        name = trace.names[code]
        here = trace.name[rows] == code
        mine = rows[here]
        is_copy = bool(trace.kind[mine[0]] == Kind.COPY)
        way = DIRECTION.search(name)
        memory = MEMORY.search(name)
        length = trace.duration_ns[mine]
        size = trace.bytes[mine]
        sized = size >= 0
        timed = sized & (length > 0)
        spread = spread_by(np.zeros(mine.size, np.int64), length, 1)
        yield CopyTime(
            device=work.device,
            kind="copy" if is_copy else "memset",
            direction=(way[0] if way else "other") if is_copy else None,
            source=memory[1] if memory and is_copy else None,
            target=(memory[2] if is_copy else memory[1]) if memory else None,
            steps=max(1, work.steps.row.size),
            count=mine.size,
            bytes=int(size[sized].sum()) if sized.any() else None,
            largest_bytes=int(size.max()) if sized.any() else None,
            total_ns=int((ends - starts)[here].sum()),
            overlap_ns=int(hidden[here].sum()),
            bytes_per_s=float(size[timed].sum() / (length[timed].sum() / 1e9)) if timed.any() else None,
            blocking=int(waited[here].sum()) if (launch[here] >= 0).any() else None,
            blocked_ns=int(blocked[here].sum()) if (launch[here] >= 0).any() else None,
            median_ns=int(spread["median_ns"][0]),
            min_ns=int(spread["min_ns"][0]),
            max_ns=int(spread["max_ns"][0]),
            deviation_ns=float(spread["deviation_ns"][0]),
        )


def _host_waited_until(trace: Trace) -> Ints:
    """For each copy or memset row when the host, which had waited for it, continued; -1 where it did not wait.

    It waited in the call itself, if that is one that blocks or if it lasted through half of the copy
    (as calls that copy from or to pageable memory do, whatever their name), or in a sync that the
    same op made next (as ``tensor.to`` does without ``non_blocking``).
    """
    until = np.full(len(trace), -1, np.int64)
    rows = trace.device_rows
    rows = rows[(trace.kind[rows] != Kind.KERNEL) & (trace.launch[rows] >= 0)]
    launch = trace.launch[rows]
    syncs = find_rows(trace, BLOCKING, Kind.RUNTIME)
    blocks = mask_of(trace, syncs)
    through = np.minimum(trace.end_ns[launch], trace.end_ns[rows]) - trace.start_ns[rows]
    lasted = 2 * through > trace.duration_ns[rows]
    until[rows] = np.where(blocks[launch] | lasted, trace.end_ns[launch], -1)

    syncs = syncs[np.lexsort((trace.start_ns[syncs], trace.track[syncs]))]
    is_op = trace.is_kind(Kind.OP)
    op_of_sync, op_of_copy = nearest_above(trace, syncs, is_op), nearest_above(trace, launch, is_op)
    for track in np.unique(trace.track[syncs]).tolist():
        theirs = np.flatnonzero(trace.track[syncs] == track)
        mine = np.flatnonzero((trace.track[launch] == track) & (op_of_copy >= 0))
        at = np.searchsorted(trace.start_ns[syncs[theirs]], trace.end_ns[launch[mine]], side="left")
        following = theirs[np.minimum(at, theirs.size - 1)]
        same = (at < theirs.size) & (op_of_sync[following] == op_of_copy[mine])
        until[rows[mine[same]]] = trace.end_ns[syncs[following[same]]]
    return until
