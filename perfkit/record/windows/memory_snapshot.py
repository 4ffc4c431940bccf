"""A snapshot of the CUDA allocator's history in a window: who allocated what, and what was allocated at the peak.

Bounded, with Python stacks only: C++ stacks make a dump a hundred times slower (461 s against 4 s in torchtitan#3628).
An out-of-memory error inside the window writes what led to it, as ``memory-<window>.oom.pickle``. Open the files at
pytorch.org/memory_viz, or with any viewer of torch's snapshots. The trigger "out-of-memory" detects such errors in the
whole run. Run against a simulated CUDA runtime.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfkit import _env
from perfkit.record.windows.window_controller import WindowRecorder
from perfkit.run.atomic import replacing

#: Allocations and frees kept: the order of magnitude that torchtitan and Composer use; at about 200 bytes each 20 MB.
MAX_ENTRIES = 100_000


class _Allocator:
    """torch's private functions for the history of device memory; all that perfkit uses of them."""

    def __init__(self) -> None:
        torch: Any = _env.require_torch("perfkit.profile")
        self._memory: Any = torch.cuda.memory
        self._c: Any = torch._C

    def problem(self) -> str | None:
        """Why this torch can write no snapshot, None where it can."""
        names = ("_record_memory_history", "_dump_snapshot")
        missing = next((name for name in names if not hasattr(self._memory, name)), None)
        if missing is not None:
            return f"this torch has no torch.cuda.memory.{missing}"
        # A build for the CPU does not have it.
        backend = getattr(self._c, "_cuda_getAllocatorBackend", lambda: "native")()
        if backend != "native":
            return f"the program's allocator is {backend}: only torch's own keeps a history and reports such errors"
        return None

    def recording(self) -> bool:
        """Whether somebody records the history already; False where this torch does not report that."""
        enabled = getattr(self._c, "_cuda_isHistoryEnabled", None)
        return bool(enabled()) if enabled is not None else False

    def record(self, on: bool) -> None:
        if on:
            self._memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=MAX_ENTRIES)
        else:
            self._memory._record_memory_history(enabled=None)

    def dump(self, path: Path) -> None:
        """Write the snapshot, whole or not at all."""
        with replacing(path) as part:
            self._memory._dump_snapshot(str(part))

    def observe(self, observer: Callable[[int, int, int, int], None]) -> bool:
        """Call ``observer`` before each out-of-memory error from now on; returns whether this torch can."""
        attach = getattr(self._c, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            return False
        attach(observer)
        return True


class MemoryRecorder(WindowRecorder):
    """Records the allocator's history from a window's first active step to its end, and writes a snapshot."""

    name = "memory"

    def __init__(self, file_of: Callable[[int], Path], note: Callable[[str], None]) -> None:
        self._file_of = file_of
        self._note = note
        self._allocator: _Allocator | None = None
        self._index: int | None = None

    def activate(self, index: int) -> None:
        """The first active step of window ``index`` is about to begin."""
        if not _env.cuda_in_use():
            self._note("no memory snapshot: the program does not use CUDA, and torch keeps no history of other memory")
            return
        allocator = self._allocator = _Allocator()
        if (problem := allocator.problem()) is not None:
            self._note(f"no memory snapshot: {problem}")
            return
        if allocator.recording():
            self._note("no memory snapshot: the program records the memory history itself")
            return
        # Before it is switched on: if that fails half-way, `end` switches it off.
        self._index = index
        allocator.record(True)
        if not _observe(allocator, self.out_of_memory):
            self._note("out-of-memory errors leave no snapshot: this torch has no observer for them")

    def end(self, index: int, *, early: bool) -> None:
        """Write the snapshot and stop recording."""
        recorded, self._index = self._index, None
        if recorded is None or self._allocator is None:
            return
        try:
            self._allocator.dump(self._file_of(recorded))
        finally:
            self._allocator.record(False)

    def discard(self, index: int) -> None:
        """Remove the window's snapshot."""
        self._file_of(index).unlink(missing_ok=True)

    def size(self, index: int) -> int:
        """Bytes of the window's snapshot."""
        path = self._file_of(index)
        return path.stat().st_size if path.is_file() else 0

    def out_of_memory(self) -> None:
        """The allocator is out of memory; the error is about to be raised."""
        if self._index is not None and self._allocator is not None:
            path = self._file_of(self._index)
            self._allocator.dump(path.with_name(f"{path.stem}.oom{path.suffix}"))


class OutOfMemoryWatch:
    """Writes the allocator's state at the first out-of-memory error of a run, and counts these errors.

    It records no history, because that makes every allocation slower: the snapshot has the blocks and their sizes, and
    the Python stacks of those that were allocated while something else recorded the history.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._allocator: _Allocator | None = None
        #: Whether `attach` was called.
        self.attached = False
        self.count = 0

    def attach(self) -> str | None:
        """Start watching, once the program uses CUDA; returns why that is impossible, or None."""
        self.attached = True
        allocator = _Allocator()
        if (problem := allocator.problem()) is not None:
            return problem
        if not _observe(allocator, self.out_of_memory):
            return "this torch has no observer for out-of-memory errors"
        self._allocator = allocator
        return None

    def detach(self) -> None:
        """Stop watching."""
        self._allocator = None

    def out_of_memory(self) -> None:
        """The allocator is out of memory; the error is about to be raised."""
        if self._allocator is None:
            return
        self.count += 1
        if self.count == 1:
            self._allocator.dump(self._path)


#: Methods to call at out-of-memory errors. torch's observer cannot be detached, so there is one for the process.
_callbacks: list[weakref.WeakMethod[Callable[[], None]]] = []
_observing = False


def _observe(allocator: _Allocator, callback: Callable[[], None]) -> bool:
    """Call the method ``callback`` at out-of-memory errors as long as its object lives; returns whether torch can."""
    global _observing
    _callbacks[:] = [one for one in _callbacks if one() not in (None, callback)] + [weakref.WeakMethod(callback)]
    _observing = _observing or allocator.observe(_out_of_memory)
    return _observing


def _out_of_memory(device: int, alloc: int, device_alloc: int, device_free: int) -> None:
    for reference in _callbacks:
        if (callback := reference()) is not None:
            # The program's own error is about to be raised, and must be the one that it sees.
            with suppress(Exception):
                callback()
