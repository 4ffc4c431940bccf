"""The gate for Nsight Systems and Nsight Compute: opened and closed with the window, and always closed.

Run the tool with ``--capture-range=cudaProfilerApi``. Where there is no CUDA, or nsys records the whole
program, the window is also the NVTX range ``perfkit.window``, by which a report can be cut afterwards.

The NVTX side is proven under an injected tool; the CUDA gate was not run on a GPU yet.
"""

from __future__ import annotations

from typing import Any

from perfkit import _env
from perfkit.capture.windows import Recorder
from perfkit.ranges import calls, nvtx

#: The range's name in the tool's timeline.
RANGE = "perfkit.window"


class CudaProfilerGate(Recorder):
    """Opens the tool's capture range at a window's first active step and closes it after the last."""

    name = "cuda_profiler"

    def __init__(self) -> None:
        self._cuda: Any = None
        if _env.cuda_in_use():
            from torch import cuda

            untyped: Any = cuda
            self._cuda = untyped.cudart()
        self._range: tuple[Any, Any] | None = None

    def activate(self, index: int) -> None:
        """The first active step of window ``index`` is about to begin."""
        if self._cuda is not None:
            self._cuda.cudaProfilerStart()
        # A start/end range: what the program pushes and pops meanwhile need not nest with it.
        attributes, domain = nvtx.attributes(RANGE, None, None, "perfkit", index)
        self._range = (calls.start(attributes, domain)[0], domain)

    def end(self, index: int, *, early: bool) -> None:
        """The window is over, early or not."""
        opened, self._range = self._range, None
        if opened is not None:
            calls.end(*opened)
            if self._cuda is not None:
                self._cuda.cudaProfilerStop()
