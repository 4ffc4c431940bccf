"""A snapshot of the CUDA allocator's history in a window: who allocated what, and who held the peak.

Bounded, with Python stacks only: C++ stacks make a dump a hundred times slower (461 s against 4 s in
torchtitan#3628). An out-of-memory error inside the window dumps what led to it. Open the file at
pytorch.org/memory_viz, or any viewer of torch's snapshots. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit import _env
from perfkit.capture.windows import Recorder

#: Allocations and frees kept: torchtitan's and Composer's choice of order; at about 200 bytes each 20 MB.
MAX_ENTRIES = 100_000


class MemorySnapshot(Recorder):
    """Records the allocator's history from a window's first active step to its end, and dumps it."""

    name = "memory"

    def __init__(self, file_of: Callable[[int], Path], note: Callable[[str], None]) -> None:
        self._file_of = file_of
        self._note = note
        self._index: int | None = None
        self._observing = False

    def activate(self, index: int) -> None:
        """The first active step of window ``index`` is about to begin."""
        if not _env.cuda_in_use():
            self._note("no memory snapshot: there is no CUDA device, and torch keeps no history of CPU memory")
            return
        memory = _memory()
        memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=MAX_ENTRIES)
        self._index = index
        if not self._observing:
            # It cannot be detached; outside a window it does nothing.
            _torch()._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
            self._observing = True

    def end(self, index: int, *, early: bool) -> None:
        """Dump the snapshot and stop recording."""
        recorded, self._index = self._index, None
        if recorded is not None:
            try:
                _memory()._dump_snapshot(str(self._file_of(recorded)))
            finally:
                _memory()._record_memory_history(enabled=None)

    def _out_of_memory(self, device: int, alloc: int, device_alloc: int, device_free: int) -> None:
        if self._index is not None:
            _memory()._dump_snapshot(str(self._file_of(self._index)))


def _torch() -> Any:
    import torch

    return torch


def _memory() -> Any:
    return _torch().cuda.memory
