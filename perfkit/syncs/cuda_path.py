"""The CUDA path: torch's own sync debug mode, heard through one object among the warnings filters.

Not yet run on a GPU: its Python machinery is tested on the CPU with the warning's text.

Torch tells each sync by a warning, in the thread and at the line that synced. A warnings filter whose
message pattern is not a string is asked through ``.match(text)``: ours records and says "ignore", so other
warnings, their filters and registries are untouched and nothing is de-duplicated. Nothing runs per
operation. The time the host was blocked, and the waits that torch does not tell (``synchronize`` of
device, event and accelerator), come from wrappers around a few entry points; none of them causes a graph
break, and on a host tensor each costs one attribute read.

A backward on CUDA runs in threads of torch's own; what syncs in its C++ code is told at the end, in the thread
and at the line that called ``backward()``, and what syncs in a Python hook at the hook's line.

Torch does not tell non-blocking copies with pageable memory. A detection that asks for what may sync gets
them from wrappers around the calls that copy (the wide set).

Not seen: waits inside kernels that are not torch's, and ops called as ``torch.ops.aten.x`` outside any torch
function (their warning goes from C++ straight to stderr).
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import sys
import threading
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from perfkit import _clock, _code_owner
from perfkit._patches import Patches
from perfkit.run.records import SyncKind
from perfkit.syncs.op_table import PAGEABLE
from perfkit.syncs.sync_log import ENGINE_THREAD, Cause, Listener, report

#: How torch's warning begins, on CUDA and on HIP.
SYNC_TEXT = "called a synchronizing"
#: What the setter of the debug mode says once: that the mode is a prototype.
_SETTER_TEXT = "Synchronization debug mode is a"

_DEBUG_WARN = 1

_FILTER = "warnings filter: sync debug mode"

#: Timed methods of Tensor -> what a sync inside them is.
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

#: The wide set: methods of Tensor that copy between host and device.
_COPIES = ("to", "cuda", "copy_")

#: What a call by this name is, where only the source of the line can tell.
_KIND_OF_CALL: dict[str, SyncKind] = {
    **dict.fromkeys(
        ("nonzero", "argwhere", "where", "masked_select", "unique", "unique_consecutive", "bincount"), "shape"
    ),
    **dict.fromkeys(("repeat_interleave", "one_hot", "coalesce", "to_sparse"), "shape"),
    **dict.fromkeys(("cuda", "tensor", "as_tensor", "asarray", "new_tensor"), "copy-h2d"),
    **dict.fromkeys(("equal", "allclose", "multinomial", "mode"), "read"),
    **dict.fromkeys(("barrier", "all_gather_object", "broadcast_object_list"), "collective"),
}


class _OpenCall:
    """A timed call that is running in this thread, and the syncs told inside it."""

    def __init__(self) -> None:
        self.raw_syncs = 0


class CudaPath:
    """What is in place while a detection watches CUDA; one for the process, shared by all detections."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._lock = threading.RLock()
        self._patches = Patches()
        self._wide: list[Listener] = []
        self._wide_patches = Patches()
        self._entry: tuple[Any, ...] = ("ignore", self, UserWarning, None, 0)
        self._arming = False
        self._local = threading.local()

    def enter(self, listener: Listener, *, wide: bool = False) -> None:
        """Let ``listener`` hear of every sync of the process; the first one arms the path, the first ``wide`` one
        also the wide set.
        """
        with self._lock:
            if not self._listeners:
                self._arm()
            self._listeners = [*self._listeners, listener]
            if wide:
                if not self._wide:
                    self._wrap_copies()
                self._wide.append(listener)

    def leave(self, listener: Listener) -> None:
        """Stop telling ``listener``; the last one disarms the path."""
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]
            if listener in self._wide:
                self._wide.remove(listener)
                if not self._wide:
                    self._wide_patches.undo()
            if not self._listeners:
                self._patches.undo()

    # The warnings filter.

    def match(self, text: str) -> bool:
        """Take a warning of torch's for a sync; called by Python's warnings with the text of every warning."""
        if SYNC_TEXT not in text:
            return self._arming and text.startswith(_SETTER_TEXT)
        if not self._listeners:  # left behind by a catch_warnings block that outlived the detection
            return False
        if getattr(self._local, "reporting", False):
            return True
        call: _OpenCall | None = getattr(self._local, "call", None)
        if call is not None:
            call.raw_syncs += 1
            return True
        frame = sys._getframe(1)
        self._report(_cause_of_line(frame), frame)
        return True

    def _arm(self) -> None:
        self._arming = True
        try:
            self._patches.add(_FILTER, self._remove_filter)
            self._put_first()
            add = warnings._add_filter  # type: ignore[attr-defined]  # private: a test tells when it moves

            def add_below(*args: Any, **kwargs: Any) -> None:
                # A filter that the program adds (simplefilter("error")) must not come before ours.
                add(*args, **kwargs)
                if self._patches:
                    self._put_first()

            self._patches.set(warnings, "_add_filter", add_below)
            self._wrap_methods()
            self._wrap_waits()
            mode_before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode(_DEBUG_WARN)
            self._patches.add("torch.cuda sync debug mode", lambda: torch.cuda.set_sync_debug_mode(mode_before))
        except BaseException:
            self._patches.undo()
            raise
        finally:
            self._arming = False

    def _remove_filter(self) -> None:
        if self._entry in warnings.filters:
            warnings.filters.remove(self._entry)  # type: ignore[attr-defined]  # a list, typed as a Sequence
            _filters_mutated()

    def _put_first(self) -> None:
        filters: Any = warnings.filters
        if self._entry in filters:
            filters.remove(self._entry)
        filters.insert(0, self._entry)
        _filters_mutated()

    # The timed entry points.

    def _wrap_methods(self) -> None:
        for name, cause in _METHODS.items():
            original = getattr(torch.Tensor, name)
            wrapper = self._timed_cpu(original, cause) if name == "cpu" else self._timed(original, cause)
            self._patches.set(torch.Tensor, name, functools.wraps(original)(wrapper))

    def _wrap_waits(self) -> None:
        for owner, op in (
            (torch.cuda, "cuda.synchronize"),
            (torch.accelerator, "accelerator.synchronize"),
            (torch.cuda.Stream, "Stream.synchronize"),
            (torch.cuda.Event, "Event.synchronize"),
        ):
            original = owner.synchronize
            cause = Cause("explicit", op, explicit=True)
            self._patches.set(owner, "synchronize", functools.wraps(original)(self._waiting(original, cause)))

    def _wrap_copies(self) -> None:
        for name in _COPIES:
            original = getattr(torch.Tensor, name)
            self._wide_patches.set(torch.Tensor, name, functools.wraps(original)(self._copying(original, name)))

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

    def _waiting(self, original: Callable[..., Any], cause: Cause) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            return self._measure(original, cause, args, kwargs, untold=lambda result: cause)

        return waiting

    def _copying(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        def copying(self_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self_, *args, **kwargs)
            source = args[0] if name == "copy_" and args else kwargs.get("src", self_)
            target_before = self_ if name == "copy_" else None

            def untold(result: Any) -> Cause | None:
                if not _non_blocking(args, kwargs):
                    return None
                return _pageable_copy(name, source, result if target_before is None else target_before)

            kind: SyncKind = "copy-d2h" if source.is_cuda else "copy-h2d"
            return self._measure(original, Cause(kind, name, explicit=True), (self_, *args), kwargs, untold=untold)

        return copying

    def _measure(
        self,
        original: Callable[..., Any],
        cause: Cause,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        untold: Callable[[Any], Cause | None] | None = None,
    ) -> Any:
        """Run an entry point and book the time with it if it synced. The outermost one owns the time.

        ``untold`` says from the result whether a call that torch tells nothing of synced.
        """
        if getattr(self._local, "call", None) is not None:
            return original(*args, **kwargs)
        call = self._local.call = _OpenCall()
        start = _clock.now_ns()
        try:
            result = original(*args, **kwargs)
        finally:
            self._local.call = None
        blocked_ns = _clock.now_ns() - start
        found = cause if call.raw_syncs else untold(result) if untold is not None else None
        if found is not None:
            self._report(found, sys._getframe(1), max(1, call.raw_syncs), blocked_ns)
        return result

    def _report(self, cause: Cause, frame: FrameType, raw_syncs: int = 1, blocked_ns: int | None = None) -> None:
        self._local.reporting = True  # a callback may sync, or warn
        try:
            thread = ENGINE_THREAD if _in_engine_thread() else None
            report(self._listeners, cause, frame, thread=thread, raw_syncs=raw_syncs, blocked_ns=blocked_ns)
        finally:
            self._local.reporting = False


def _in_engine_thread() -> bool:
    """Whether this thread is one that torch has started to run a backward."""
    # Private to torch and to Python; a test tells when they move.
    if torch._C._current_graph_task_id() == -1:
        return False
    return isinstance(threading.current_thread(), threading._DummyThread)


def _non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a copy was asked not to block: the first flag of `to`, `cuda` and `copy_`."""
    return bool(kwargs.get("non_blocking", next((arg for arg in args if isinstance(arg, bool)), False)))


def _pageable_copy(op: str, source: torch.Tensor, target: torch.Tensor) -> Cause | None:
    """The cause of a non-blocking copy that waits all the same, as its side on the host is not pinned."""
    if source.is_cuda == target.is_cuda or not source.numel():
        return None
    if target.is_cuda:
        return None if source.is_pinned() else Cause("copy-h2d", op, "may", PAGEABLE, explicit=True)
    # `.to("cpu", non_blocking=True)` makes pinned memory itself.
    return None if target.is_pinned() else Cause("copy-d2h", op, explicit=True)


def _filters_mutated() -> None:
    """Tell Python's warnings that the list of filters changed; Python 3.14 moved this behind a lock."""
    module: Any = warnings
    if hasattr(module, "_filters_mutated"):
        module._filters_mutated()
    else:
        with module._lock:
            module._filters_mutated_lock_held()


def _cause_of_line(frame: FrameType) -> Cause:
    """What synced where no wrapper tells: the expression that the program's frame is at."""
    program: FrameType | None = frame
    while program is not None and _code_owner.owner_of(program.f_code.co_filename) in ("perfkit", "torch", "python"):
        program = program.f_back
    return Cause("other", "sync") if program is None else _cause_at(program.f_code, program.f_lasti)


# A loop syncs at the same few places again and again; 1024 places are more than a program has.
@functools.lru_cache(maxsize=1024)
def _cause_at(code: CodeType, instruction: int) -> Cause:
    text = _expression(code, instruction)
    if not text:
        return Cause("other", "sync")
    return Cause(_kind_of(text), text if len(text) <= 60 else text[:57] + "...")


def _expression(code: CodeType, instruction: int) -> str:
    """The source of the expression at an instruction, where it is on one line; "" where Python cannot tell (3.10)."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return ""
    # Two bytes of bytecode per entry.
    first, last, start, end = next(itertools.islice(positions(), instruction // 2, None))
    if first is None or first != last or start is None or end is None:
        return ""
    # Columns count bytes of UTF-8.
    return linecache.getline(code.co_filename, first).encode()[start:end].decode(errors="replace").strip()


def _kind_of(expression: str) -> SyncKind:
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return "other"
    if not isinstance(node, ast.Call):
        return "other"
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name == "print":
        return "print"
    return _KIND_OF_CALL.get(name, "other")


cuda_path = CudaPath()


def any_device_memory() -> bool:
    """Whether this process ever held tensor memory on a CUDA device."""
    return any(torch.cuda.memory_reserved(index) > 0 for index in range(torch.cuda.device_count()))
