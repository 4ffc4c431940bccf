"""CUDA events as perfkit uses them: on one stream each, and never queried while a CUDA graph is captured.

A query of any event, in any thread, invalidates a capture in CUDA's global mode, which is torch's default
(cudaThreadExchangeStreamCaptureMode in the CUDA runtime's reference). So captures that begin through torch are counted
(`GRAPH_CAPTURES`), and one that begins waits until the running query is over.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from perfkit import _env, _torch_versions
from perfkit._patches import Patches, SharedPatches


class DeviceEvent(Protocol):
    """The part of an event that is used here."""

    def record(self, stream: Any) -> None:
        """Mark this point of the stream."""

    def query(self) -> bool:
        """Whether the device has passed the mark."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds on the device from this mark to ``end``."""


class DeviceEvents:
    """Makes events, and tells where they may be recorded; the program must have started to use CUDA.

    A mark costs 0.5 us of Python with ``torch.Event`` and a stream that is known, and 4 us with ``torch.cuda.Event`` on
    the current one. The events live as long as their maker.
    """

    def __init__(self) -> None:
        torch: Any = _env.require_torch("device time")
        #: Whether the current stream of the calling thread is being captured.
        self.capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        #: The current stream of the calling thread; its attribute ``device_index`` is the device.
        self.current_stream: Callable[[], Any]
        self._new: Callable[[], DeviceEvent]
        self._made: list[DeviceEvent] = []
        accelerator = _torch_versions.accelerator(torch)
        if accelerator is not None:
            self.current_stream = accelerator.current_stream
            self._new = functools.partial(torch.Event, device="cuda", enable_timing=True)
        else:  # torch before 2.6
            self.current_stream = torch.cuda.current_stream
            self._new = functools.partial(torch.cuda.Event, enable_timing=True)
        _MAKERS.add(self)

    def new(self) -> DeviceEvent:
        """A new event; it belongs to the device of the stream on which it is recorded first."""
        event = self._new()
        self._made.append(event)
        return event

    def keep(self) -> None:
        """Let none of the events that exist now ever be freed in this process."""
        if self._made:
            import ctypes  # takes 2 ms, but torch has it

            for event in self._made:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))


#: Those of this process.
_MAKERS: weakref.WeakSet[DeviceEvents] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # An event that was recorded asks its device when it is freed, which aborts a process that was forked after CUDA
    # had been started (seen with torch 2.13): a loader's worker in its first garbage collection, or any other together
    # with the recorder that it does not go on with.
    for maker in list(_MAKERS):
        maker.keep()


if hasattr(os, "register_at_fork"):
    # Before the handlers of the modules that import this one, which let go of events.
    os.register_at_fork(after_in_child=_after_fork_in_child)


class GraphCaptures:
    """The CUDA graphs that torch is capturing in this process; there is one, `GRAPH_CAPTURES`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Weak: a capture that is never ended is over with its graph.
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._patches = SharedPatches("captures of CUDA graphs", self._install)
        #: Count captures from now on, and until then.
        self.watch, self.unwatch = self._patches.acquire, self._patches.release

    def hold(self) -> bool:
        """Keep captures from beginning until `release`; False, and nothing to release, while there is one.

        False too while another thread holds: this call never waits.
        """
        if not self._lock.acquire(blocking=False):
            return False
        if self._graphs:
            self._lock.release()
            return False
        return True

    def release(self) -> None:
        """Captures may begin again."""
        self._lock.release()

    def _install(self, patches: Patches) -> None:
        torch: Any = _env.require_torch("device time")
        patches.wrap(torch.cuda.CUDAGraph, "capture_begin", self._beginning)
        patches.wrap(torch.cuda.CUDAGraph, "capture_end", self._ending)

    def _beginning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._graphs.add(graph)
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                self._forget(graph)
                raise

        return capture_begin

    def _ending(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(graph, *args, **kwargs)
            finally:
                self._forget(graph)

        return capture_end

    def _forget(self, graph: Any) -> None:
        with self._lock:
            self._graphs.discard(graph)


GRAPH_CAPTURES = GraphCaptures()
