"""The gate for Nsight Systems and Nsight Compute: opened and closed with the window, and always closed.

Run the tool with ``--capture-range=cudaProfilerApi``. Where there is no CUDA, or nsys records the whole
program, the window is also the NVTX range ``perfkit.window``, by which a report can be cut afterwards. Inside it each
step is a range under torch's name for it, ``ProfilerStep#N``, so that the tool's report is read step by step.

The NVTX side is proven under an injected tool; the CUDA gate was not run on a GPU yet.
"""

from __future__ import annotations

from typing import Any

from perfkit import _env
from perfkit.ranges import listener_calls, nvtx_listener
from perfkit.record.windows.window_controller import Recorder

#: The range's name in the tool's timeline.
RANGE = "perfkit.window"


class CudaProfilerGate(Recorder):
    """Opens the tool's capture range at a window's first active step and closes it after the last."""

    name = "cuda_profiler"

    def __init__(self) -> None:
        self._cuda: Any = None
        self._range: tuple[Any, Any] | None = None
        self._next = 0
        self._step: tuple[Any, Any] | None = None

    def open(self, index: int, step: int) -> str | None:
        """Window ``index`` begins with ``step``, to warm up or at once."""
        self._next = step
        return None

    def activate(self, index: int) -> None:
        """The first active step of window ``index`` is about to begin."""
        if self._cuda is None and _env.cuda_in_use():
            # Not before: this initializes CUDA, which a program may not do before it forks.
            from torch import cuda

            untyped: Any = cuda
            self._cuda = untyped.cudart()
        if self._cuda is not None:
            self._cuda.cudaProfilerStart()
        # A start/end range: what the program pushes and pops meanwhile need not nest with it.
        attributes, domain = nvtx_listener.attributes(RANGE, None, None, "perfkit", index)
        self._range = (listener_calls.start(attributes, domain)[0], domain)
        self._begin_step()

    def advance(self) -> None:
        """Another step of the window begins; those before the first active one are counted only."""
        self._next += 1
        if self._range is not None:
            self._end_step()
            self._begin_step()

    def _begin_step(self) -> None:
        # Not kept: the tool's table of registered names never shrinks, and each step has its own.
        attributes, domain = nvtx_listener.attributes(
            f"ProfilerStep#{self._next}", None, None, "perfkit", None, keep=False
        )
        self._step = (listener_calls.start(attributes, domain)[0], domain)

    def _end_step(self) -> None:
        opened, self._step = self._step, None
        if opened is not None:
            listener_calls.end(*opened)

    def end(self, index: int, *, early: bool) -> None:
        """The window is over, early or not."""
        self._end_step()
        opened, self._range = self._range, None
        if opened is None:
            return
        try:
            listener_calls.end(*opened)
        finally:
            if self._cuda is not None:
                self._cuda.cudaProfilerStop()
