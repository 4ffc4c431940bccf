"""Calls of the device's API by name: what nsys shows as its CUDA API summary, from any trace."""

from __future__ import annotations

from perfkit.measures._durations import durations_by_name
from perfkit.measures.host.os_calls import os_calls
from perfkit.measures.results.kernels import ApiCall
from perfkit.measures.steps._trace_steps import in_steps
from perfkit.trace.columns import Kind, Trace


def measure_api_calls(trace: Trace) -> tuple[ApiCall, ...]:
    """Calls of the runtime's and the driver's API by name, in the steps (without steps: in the trace), on all threads.

    Longest total first.

    Versions in the names (``_v7000``) are left out: calls of both count as one. A call that blocks contains its wait.
    """
    calls = durations_by_name(trace, in_steps(trace) & trace.is_kind(Kind.RUNTIME) & ~os_calls(trace))
    return tuple(ApiCall(**times) for times in calls)
