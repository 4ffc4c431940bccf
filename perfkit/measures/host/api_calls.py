"""Calls of the device's API by name: what nsys shows as its CUDA API summary, from any trace."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._durations import durations_by
from perfkit.measures.results.kernels import NameTime
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools

#: CUDA's runtime (``cudaMalloc``) and driver (``cuLaunchKernel``), which nsys records beside calls of the
#: system (``poll``).
CUDA = re.compile(r"cu(?:da)?[A-Z]")


def measure_api_calls(trace: Trace) -> tuple[NameTime, ...]:
    """Calls of the runtime's and the driver's API by name, over the whole trace and all threads, longest total first.

    Versions behind the names (``_v7000``) are left out: calls of both count as one. A call that blocks holds its wait.
    """
    return _by_name(trace, trace.is_kind(Kind.RUNTIME) & ~os_calls(trace))


def measure_os_calls(trace: Trace) -> tuple[NameTime, ...]:
    """Calls of the system by name, in the same way; none but nsys records them."""
    return _by_name(trace, os_calls(trace))


def os_calls(trace: Trace) -> Bools:
    """A mask of the calls of the system (``poll``, ``sem_wait``), which nsys traces as "OS runtime libraries"."""
    if trace.metadata.format != "nsys":
        return np.zeros(len(trace), bool)
    is_cuda = np.fromiter((CUDA.match(name) is not None for name in trace.names), bool, len(trace.names))
    calls = trace.is_kind(Kind.RUNTIME)
    calls[calls] = ~is_cuda[trace.name[calls]]
    return calls


def _by_name(trace: Trace, wanted: Bools) -> tuple[NameTime, ...]:
    rows = np.flatnonzero(wanted)
    by_name = durations_by(trace.name[rows].astype(np.int64), trace, rows)
    return tuple(NameTime(name=trace.names[code], **durations) for code, durations in by_name)
