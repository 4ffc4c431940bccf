"""Syncs on CUDA: torch's sync debug mode, whose warnings one object among the warnings filters receives.

Its Python code is tested on the CPU with the warning's text, and run against a simulated CUDA runtime.

Torch warns of each sync, in the thread and at the line that synced. Python matches a warning with a filter through
``pattern.match(text)``. The pattern of our filter is an object that records the sync and returns true for "ignore", so
other warnings, their filters and registries are untouched, and repeated warnings are not dropped. Nothing runs per
operation. Wrappers around a few functions measure how long the host is blocked, and report the waits that torch does
not warn of (``synchronize`` of device, event and accelerator). None of them causes a graph break; on a host tensor each
costs one attribute read.

A backward on CUDA runs in threads of torch. Torch reports what syncs in its C++ code at the end, in the thread and at
the line that called ``backward()``, and what syncs in a Python hook at the hook's line.

Torch does not warn of the waits inside Thrust, which sorts for ``unique`` of rows and ``coalesce``: these functions are
wrapped, too. Nor does it warn of non-blocking copies with pageable memory: for a detection with ``certainty="may"``,
the functions that copy are wrapped.

Not covered: waits inside kernels that are not torch's, ``mode`` of slices longer than 2048 (Thrust again), and ops
called as ``torch.ops.aten.x`` outside any torch function (their warning goes from C++ to stderr).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from perfkit import _clock, _torch_versions
from perfkit._patches import Patches, SharedPatches
from perfkit.run.records import SyncKind
from perfkit.syncs.sync_expression import cause_of_line
from perfkit.syncs.sync_log import ENGINE_THREAD, PAGEABLE, Cause, SyncListener, report

#: How torch's warning begins, on CUDA and on HIP.
SYNC_TEXT = "called a synchronizing"
#: How the warning begins that the mode is a prototype, which its setter issues once.
_SETTER_TEXT = "Synchronization debug mode is a"

_DEBUG_WARN = 1

#: Timed methods of Tensor -> the cause of a sync inside them.
_METHODS: dict[str, Cause] = {
    "item": Cause("read", "item"),
    "tolist": Cause("read", "tolist"),
    "cpu": Cause("copy-d2h", "cpu", explicit=True),
    "numpy": Cause("copy-d2h", "numpy"),
    "__bool__": Cause("read", "bool(tensor)"),
    "__float__": Cause("read", "float(tensor)"),
    "__int__": Cause("read", "int(tensor)"),
    "__index__": Cause("read", "int(tensor)"),
    "__repr__": Cause("print", "print(tensor)"),
}

#: Functions that sort in Thrust, by owner -> the cause of the wait inside it.
_SORTS: tuple[tuple[Any, str, Cause], ...] = (
    (torch, "unique", Cause("shape", "unique")),
    (torch, "unique_consecutive", Cause("shape", "unique_consecutive")),
    (torch.Tensor, "unique", Cause("shape", "unique")),
    (torch.Tensor, "unique_consecutive", Cause("shape", "unique_consecutive")),
    (torch.Tensor, "coalesce", Cause("shape", "coalesce")),
)

#: Methods of Tensor that copy between host and device.
_COPIES = ("to", "cuda", "copy_")


class _ThreadState(threading.local):
    """Per thread: whether a sync is being reported, and the syncs inside the timed call that is running."""

    reporting = False
    #: None while no timed call runs.
    syncs_in_call: int | None = None


class CudaSyncs:
    """Reports the syncs of the process to all detections on CUDA; there is one, `cuda_syncs`."""

    def __init__(self) -> None:
        self._listeners: tuple[SyncListener, ...] = ()
        self._lock = threading.Lock()
        self._debug_mode = SharedPatches("sync debug mode", self._start_debug_mode)
        self._wrapped_copies = SharedPatches("wrapped copies", self._wrap_copies)
        self._filter: tuple[Any, ...] = ("ignore", self, UserWarning, None, 0)
        self._starting = False
        self._thread = _ThreadState()

    def enter(self, listener: SyncListener, *, copies: bool = False) -> None:
        """Report syncs to ``listener``, with ``copies`` also pageable copies, which may sync."""
        with self._lock:
            self._debug_mode.acquire()
            self._listeners = (*self._listeners, listener)
            if copies:
                self._wrapped_copies.acquire()

    def leave(self, listener: SyncListener, *, copies: bool = False) -> None:
        """Stop reporting to ``listener``; ``copies`` as for `enter`."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
            if copies:
                self._wrapped_copies.release()
            self._debug_mode.release()

    # -- the warnings filter

    def match(self, text: str) -> bool:
        """Record a sync warning; called by Python's warnings with the text of every warning."""
        if SYNC_TEXT not in text:
            return self._starting and text.startswith(_SETTER_TEXT)
        if not self._listeners:  # left behind by a catch_warnings block that outlived the detection
            return False
        thread = self._thread
        if thread.reporting:
            return True
        if thread.syncs_in_call is not None:
            thread.syncs_in_call += 1
            return True
        frame = sys._getframe(1)
        self._report(cause_of_line(frame), frame)
        return True

    def _start_debug_mode(self, patches: Patches) -> None:
        self._starting = True
        try:
            patches.add("warnings filter: sync debug mode", self._remove_filter)
            self._put_first()
            add = warnings._add_filter  # type: ignore[attr-defined]  # private: a test fails when it moves

            def add_below(*args: Any, **kwargs: Any) -> None:
                # A filter that the program adds (simplefilter("error")) must not precede ours.
                add(*args, **kwargs)
                if self._debug_mode:
                    self._put_first()

            patches.set(warnings, "_add_filter", add_below)
            self._wrap_methods(patches)
            self._wrap_waits(patches)
            self._set_debug_mode(patches)
        finally:
            self._starting = False

    def _set_debug_mode(self, patches: Patches) -> None:
        get_mode, set_mode = _debug_mode_functions()
        mode_before = get_mode()
        set_by_program = False

        def noting(original: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(original)
            def setting(*args: Any, **kwargs: Any) -> None:
                nonlocal set_by_program
                original(*args, **kwargs)
                set_by_program = True

            return setting

        def put_back() -> None:
            if not set_by_program and get_mode() == _DEBUG_WARN:
                set_mode(mode_before)

        set_mode(_DEBUG_WARN)
        patches.add("torch.cuda sync debug mode", put_back)
        patches.wrap(torch.cuda, "set_sync_debug_mode", noting)

    def _remove_filter(self) -> None:
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # a list, typed as a Sequence
            _filters_mutated()

    def _put_first(self) -> None:
        filters: Any = warnings.filters
        if self._filter in filters:
            filters.remove(self._filter)
        filters.insert(0, self._filter)
        _filters_mutated()

    # -- the wrapped functions

    def _wrap_methods(self, patches: Patches) -> None:
        for name, cause in _METHODS.items():
            original = getattr(torch.Tensor, name)
            wrapper = self._timed_cpu(original, cause) if name == "cpu" else self._timed(original, cause)
            patches.set(torch.Tensor, name, functools.wraps(original)(wrapper))
        for owner, name, cause in _SORTS:
            original = getattr(owner, name)
            patches.set(owner, name, functools.wraps(original)(self._sorting(original, cause)))

    def _wrap_waits(self, patches: Patches) -> None:
        for owner, op in (
            (torch.cuda, "cuda.synchronize"),
            (_torch_versions.accelerator(torch), "accelerator.synchronize"),
            (torch.cuda.Stream, "Stream.synchronize"),
            (torch.cuda.Event, "Event.synchronize"),
        ):
            if owner is None:
                continue
            original = owner.synchronize
            cause = Cause("explicit", op, explicit=True)
            patches.set(owner, "synchronize", functools.wraps(original)(self._waiting(original, cause)))

    def _wrap_copies(self, patches: Patches) -> None:
        for name in _COPIES:
            original = getattr(torch.Tensor, name)
            patches.set(torch.Tensor, name, functools.wraps(original)(self._copying(original, name)))

    def _timed(self, original: Callable[..., Any], cause: Cause) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        def timed(self_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self_.is_cuda or is_compiling():
                return original(self_, *args, **kwargs)
            return self._measure(original, cause, (self_, *args), kwargs)

        return timed

    def _timed_cpu(self, original: Callable[..., Any], cause: Cause) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        def timed(self_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                # Dynamo traces `to` but not the C function behind a wrapped `cpu`.
                return self_.to("cpu", *args, **kwargs)
            if not self_.is_cuda:
                return original(self_, *args, **kwargs)
            return self._measure(original, cause, (self_, *args), kwargs)

        return timed

    def _sorting(self, original: Callable[..., Any], cause: Cause) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        def sorting(*args: Any, **kwargs: Any) -> Any:
            tensor = args[0] if args else kwargs.get("input")
            if is_compiling() or not isinstance(tensor, torch.Tensor) or not tensor.is_cuda or not tensor.numel():
                return original(*args, **kwargs)
            # A sparse tensor that is coalesced is returned as it is.
            waits = not (tensor.is_sparse and tensor.is_coalesced())
            return self._measure(original, cause, args, kwargs, unreported=lambda result: cause if waits else None)

        return sorting

    def _waiting(self, original: Callable[..., Any], cause: Cause) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            return self._measure(original, cause, args, kwargs, unreported=lambda result: cause)

        return waiting

    def _copying(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        def copying(self_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self_, *args, **kwargs)
            source = args[0] if name == "copy_" and args else kwargs.get("src", self_)
            target_before = self_ if name == "copy_" else None

            def unreported(result: Any) -> Cause | None:
                if not _non_blocking(args, kwargs):
                    return None
                return _pageable_copy(name, source, result if target_before is None else target_before)

            kind: SyncKind = "copy-d2h" if source.is_cuda else "copy-h2d"
            return self._measure(
                original, Cause(kind, name, explicit=True), (self_, *args), kwargs, unreported=unreported
            )

        return copying

    def _measure(
        self,
        original: Callable[..., Any],
        cause: Cause,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        unreported: Callable[[Any], Cause | None] | None = None,
    ) -> Any:
        """Run a wrapped function and report a sync with its time. Of nested ones the outermost is reported.

        ``unreported`` returns the cause of a sync that torch does not warn of, from the function's result.
        """
        thread = self._thread
        if thread.syncs_in_call is not None:
            return original(*args, **kwargs)
        thread.syncs_in_call = 0
        start = _clock.now_ns()
        try:
            result = original(*args, **kwargs)
        finally:
            blocked_ns = _clock.now_ns() - start
            syncs, thread.syncs_in_call = thread.syncs_in_call, None
        found = cause if syncs else unreported(result) if unreported is not None else None
        if found is not None:
            self._report(found, sys._getframe(1), max(1, syncs), blocked_ns)
        return result

    def _report(self, cause: Cause, frame: FrameType, raw_syncs: int = 1, blocked_ns: int | None = None) -> None:
        self._thread.reporting = True  # a callback may sync, or warn
        try:
            thread = ENGINE_THREAD if _in_engine_thread() else None
            report(self._listeners, cause, frame, thread=thread, raw_syncs=raw_syncs, blocked_ns=blocked_ns)
        finally:
            self._thread.reporting = False


def _in_engine_thread() -> bool:
    """Whether torch started this thread to run a backward."""
    # Private to torch and to Python; a test fails when they move.
    if torch._C._current_graph_task_id() == -1:
        return False
    return isinstance(threading.current_thread(), threading._DummyThread)


def _non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a copy is non-blocking: the first flag of `to`, `cuda` and `copy_`."""
    return bool(kwargs.get("non_blocking", next((arg for arg in args if isinstance(arg, bool)), False)))


def _pageable_copy(op: str, source: torch.Tensor, target: torch.Tensor) -> Cause | None:
    """The cause of a non-blocking copy that waits anyway, because its side on the host is not pinned."""
    if source.is_cuda == target.is_cuda or not source.numel():
        return None
    if target.is_cuda:
        return None if source.is_pinned() else Cause("copy-h2d", op, "may", PAGEABLE, explicit=True)
    # `.to("cpu", non_blocking=True)` makes pinned memory itself.
    return None if target.is_pinned() else Cause("copy-d2h", op, explicit=True)


def _filters_mutated() -> None:
    """Invalidate the caches of Python's warnings after a change of the filters; Python 3.14 needs a lock for it."""
    module: Any = warnings
    if hasattr(module, "_filters_mutated"):
        module._filters_mutated()
    else:
        with module._lock:
            module._filters_mutated_lock_held()


cuda_syncs = CudaSyncs()


def _debug_mode_functions() -> tuple[Callable[[], int], Callable[[int], None]]:
    """Torch's functions that read and set the sync debug mode."""
    # Those of torch.cuda create a CUDA context, after which processes forked from this one cannot use CUDA. Those below
    # them are private to torch, and missing in a build for the CPU.
    return (
        getattr(torch._C, "_cuda_get_sync_debug_mode", torch.cuda.get_sync_debug_mode),
        getattr(torch._C, "_cuda_set_sync_debug_mode", torch.cuda.set_sync_debug_mode),
    )


def any_device_memory() -> bool:
    """Whether this process may have had tensor memory on a CUDA device."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # not annotated
        return False
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        return True  # then torch does not count it
    try:
        stats = [torch.cuda.memory_stats(index) for index in range(torch.cuda.device_count())]
    except RuntimeError:  # an allocator of the program's own keeps no statistics
        return True
    # cudaMallocAsync has no sum of what was ever allocated, and its pool keeps what it reserved.
    return any(stat.get(f"reserved_bytes.all.{kind}", 0) for stat in stats for kind in ("allocated", "current"))
