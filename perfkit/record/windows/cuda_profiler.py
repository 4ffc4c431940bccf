"""Opens and closes the capture range of Nsight Systems or Nsight Compute with the window, and always closes it.

Run the tool with ``--capture-range=cudaProfilerApi``. If there is no CUDA, or nsys records the whole program, the
window is also the NVTX range ``perfkit.window``, by which a report can be cut afterwards. Inside it each step is a
range under torch's name for it, ``ProfilerStep#N``, so that the tool's report is read step by step.

The NVTX side is tested under an injected tool, the CUDA side is run against a simulated CUDA runtime.
"""

from __future__ import annotations

from typing import Any

import torch

from perfkit import _env
from perfkit._nvtx_names import DOMAIN, WINDOW
from perfkit.ranges import listener_calls, nvtx_listener
from perfkit.ranges.device_events import GRAPH_CAPTURES
from perfkit.record.windows.window_controller import WindowRecorder


class CudaProfilerRecorder(WindowRecorder):
    """Opens the tool's capture range at a window's first active step and closes it after the last."""

    name = "cuda_profiler"

    def __init__(self) -> None:
        self._cudart: Any = None
        self._window: tuple[Any, Any] | None = None
        self._step: tuple[Any, Any] | None = None
        self._next = 0

    def open(self, index: int, step: int) -> str | None:
        """Window ``index`` begins with ``step``, with or without warm-up."""
        self._next = step
        return None

    def activate(self, index: int) -> None:
        """The first active step of window ``index`` is about to begin."""
        if self._cudart is None and _env.cuda_in_use():
            self._cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # not annotated
        if self._cudart is not None:
            self._cudart.cudaProfilerStart()
        # A start/end range: the program's own pushes and pops need not nest with it.
        attributes, domain = nvtx_listener.attributes(WINDOW, None, None, DOMAIN, index)
        self._window = (listener_calls.start(attributes, domain)[0], domain)
        self._begin_step()

    def advance(self) -> None:
        """Another step of the window begins; those before the first active one are only counted."""
        self._next += 1
        if self._window is not None:
            self._end_step()
            self._begin_step()

    def _begin_step(self) -> None:
        # Not kept: the tool's table of registered names never shrinks, and each step has its own.
        attributes, domain = nvtx_listener.attributes(
            f"ProfilerStep#{self._next}", None, None, DOMAIN, None, keep=False
        )
        self._step = (listener_calls.start(attributes, domain)[0], domain)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            listener_calls.end(*step)

    def end(self, index: int, *, early: bool) -> None:
        """The window is over, early or not."""
        self._end_step()
        window, self._window = self._window, None
        if window is None:
            return
        try:
            _wait_for_queued_work()
            listener_calls.end(*window)
        finally:
            if self._cudart is not None:
                self._cudart.cudaProfilerStop()


def _wait_for_queued_work() -> None:
    """Wait until every device has done what the window's steps put on it: what comes later is not in the report."""
    if not _env.cuda_in_use() or torch.cuda.is_current_stream_capturing() or not GRAPH_CAPTURES.hold():
        return
    try:
        current = torch.cuda.current_device()
        for index in range(torch.cuda.device_count()):
            # A device that the program does not use would get a context of 300 MB and more.
            if index == current or torch.cuda.max_memory_reserved(index):
                torch.cuda.synchronize(index)
    finally:
        GRAPH_CAPTURES.release()
