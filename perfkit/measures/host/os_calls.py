"""Calls of the operating system by name, which nsys alone records."""

from __future__ import annotations

import re

import numpy as np

from perfkit.measures._durations import durations_by_name
from perfkit.measures.results.kernels import OsCall
from perfkit.measures.steps._trace_steps import in_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools

#: CUDA's runtime (``cudaMalloc``) and driver (``cuLaunchKernel``), which nsys records next to calls of the
#: system (``poll``).
CUDA = re.compile(r"cu(?:da)?[A-Z]")


def measure_os_calls(trace: Trace) -> tuple[OsCall, ...]:
    """Calls of the system by name, in the steps (without steps: in the trace), on all threads; longest total first."""
    return tuple(OsCall(**times) for times in durations_by_name(trace, in_steps(trace) & os_calls(trace)))


def os_calls(trace: Trace) -> Bools:
    """A mask of the calls of the system (``poll``, ``sem_wait``), which nsys traces as "OS runtime libraries"."""
    if trace.metadata.format != "nsys":
        return np.zeros(len(trace), bool)
    is_cuda = np.fromiter((CUDA.match(name) is not None for name in trace.names), bool, len(trace.names))
    calls = trace.is_kind(Kind.RUNTIME)
    calls[calls] = ~is_cuda[trace.name[calls]]
    return calls
