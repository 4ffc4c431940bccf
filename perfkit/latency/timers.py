"""The time of one call, on the clock of the host or of the device; and preemptions in the meantime."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from perfkit import _clock, _env
from perfkit._code_owner import own_work
from perfkit.latency.stability import Conditions


class CallTime(NamedTuple):
    """The latency of one call, and for a device the time until the call returned on the host."""

    ns: int
    host_ns: int | None


class HostTimer:
    """For calls that have finished their work when they return."""

    def time(self, call: Callable[[], Any]) -> CallTime:
        """Make the call; its result is released after the time is taken."""
        began = _clock.now_ns()
        result = call()
        took = _clock.now_ns() - began
        del result
        return CallTime(took, None)


class CudaTimer:
    """Times a call by two CUDA events around it, with the device idle before: the latency of one request with launches.

    Run against a simulated CUDA runtime.
    """

    @own_work
    def __init__(self, device: torch.device) -> None:
        self._device = device
        cuda: Any = torch.cuda  # its events are untyped
        self._begin, self._end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)

    def time(self, call: Callable[[], Any]) -> CallTime:
        """Make the call and wait for the device."""
        stream = torch.cuda.current_stream(self._device)
        self._begin.record(stream)
        began = _clock.now_ns()
        result = call()
        host_ns = _clock.now_ns() - began
        self._end.record(stream)
        self._wait()
        del result
        return CallTime(round(self._begin.elapsed_time(self._end) * 1e6), host_ns)

    @own_work
    def _wait(self) -> None:
        self._end.synchronize()


Timer = HostTimer | CudaTimer


class PreemptionCounter:
    """Counts how often a thread of this process had to leave its core to another process."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._count = _preemptions()

    def conditions(self, *, on_device: bool) -> Conditions:
        """The conditions of a measurement since this was created."""
        now, seconds = _preemptions(), time.monotonic() - self._began
        return Conditions(
            on_device=on_device,
            threads=torch.get_num_threads(),
            cores=_env.cores(),
            preemptions_per_s=(now - self._count) / seconds if now is not None and self._count is not None else None,
        )


def _preemptions() -> int | None:
    try:
        import resource  # Windows does not have it
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
