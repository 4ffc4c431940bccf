"""API calls in which the host waits for the device, and the time from each to the next launch."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from perfkit.measures._rows import find_rows, launched_work
from perfkit.measures._trace_cache import once
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

#: Calls that return when the device is done. ``cudaEventQuery`` does not wait.
BLOCKING = re.compile(
    r"(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize|(?:cuda|hip)Memcpy(?:2D|3D)?$|hipMemcpyWithStream$"
    r"|cuMemcpy(?:DtoH|HtoD)(?:_v\d+)?$"
)
#: An async copy to or from pageable memory waits as well: the runtime copies through a buffer of its own.
ASYNC_COPY = re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")
TO_PAGEABLE = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")


@once
def blocking_calls(trace: Trace) -> Ints:
    """Rows of the API calls in which the host waited for the device."""
    reads = find_rows(trace, TO_PAGEABLE, Kind.COPY)
    launches = trace.launch[reads]
    copying = np.intersect1d(launches[launches >= 0], find_rows(trace, ASYNC_COPY, Kind.RUNTIME))
    return np.union1d(find_rows(trace, BLOCKING, Kind.RUNTIME), copying)


class WaitTimes(NamedTuple):
    """Blocking calls ``rows`` in order of start, each from its start to ``until``: the next launch, or the next call.

    ``device`` is that of the next launch. Calls of one ``group``, a number that rises, have the same next launch: a
    copy and the wait for it are one sync.
    """

    rows: Ints
    until: Ints
    device: Ints
    group: Ints


@once
def wait_times(trace: Trace) -> WaitTimes:
    """The blocking calls of a trace; those after its last launch end with themselves."""
    rows = blocking_calls(trace)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    work = launched_work(trace)
    launch, first = np.unique(trace.launch[work], return_index=True)
    order = np.argsort(trace.start_ns[launch], kind="stable")
    starts, device = trace.start_ns[launch][order], trace.device[work[first]][order]
    begin, end = trace.start_ns[rows], trace.end_ns[rows]
    if not rows.size or not starts.size:
        return WaitTimes(rows, end, np.full(rows.size, -1), np.zeros(rows.size, np.int64))
    at = np.searchsorted(starts, end, side="left")
    until = np.where(at < starts.size, starts[np.minimum(at, starts.size - 1)], end)
    return WaitTimes(
        rows,
        np.minimum(until, np.append(begin[1:], np.iinfo(np.int64).max)),
        device[np.minimum(at, starts.size - 1)].astype(np.int64),
        np.asarray(at, np.int64),
    )
