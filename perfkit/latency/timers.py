"""The time of one call, on the host's clock or on the device's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from perfkit import _clock
from perfkit.latency.stability import Surroundings


class Timed(NamedTuple):
    """One call: its latency, and on a device the time until the call returned on the host."""

    ns: int
    host_ns: int | None


class Timer(Protocol):
    """Times one call, with nothing queued before it."""

    def time(self, call: Callable[[], Any]) -> Timed:
        """Make the call; its result is dropped after the time is taken."""


class HostTimer:
    """Where a call has done its work when it returns."""

    def time(self, call: Callable[[], Any]) -> Timed:
        """Make the call."""
        began = _clock.now_ns()
        result = call()
        took = _clock.now_ns() - began
        del result
        return Timed(took, None)


class CudaTimer:
    """By two CUDA events around the call, the device idle before: what a single request sees, launches included.

    Not run on a GPU yet.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        cuda: Any = torch.cuda  # its events are untyped
        self._begin, self._end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)

    def time(self, call: Callable[[], Any]) -> Timed:
        """Make the call and wait for the device."""
        stream = torch.cuda.current_stream(self._device)
        self._begin.record(stream)
        began = _clock.now_ns()
        result = call()
        host_ns = _clock.now_ns() - began
        self._end.record(stream)
        self._end.synchronize()
        del result
        return Timed(round(self._begin.elapsed_time(self._end) * 1e6), host_ns)


class Watch:
    """What happens to this process beside the samples."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._switches = _put_aside()

    def surroundings(self, *, on_device: bool) -> Surroundings:
        """What was seen since this was made."""
        now, seconds = _put_aside(), time.monotonic() - self._began
        known = now is not None and self._switches is not None and seconds > 0
        return Surroundings(
            on_device=on_device,
            threads=torch.get_num_threads(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            put_aside=(now - self._switches) / seconds if known else None,  # type: ignore[operator]  # known
        )


def _put_aside() -> int | None:
    """How often a thread of this process was taken from its core before it was done; None where that is not known."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
