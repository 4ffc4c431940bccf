"""Hears the ops of a thread, and the reads of whole tensors by Python, which are no ops: ``tolist()``, ``numpy()``."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit._code_owner import owner_of
from perfkit._patches import Patches

#: ``np.asarray(tensor)`` calls ``numpy``; what reads one number is an op.
_READS = ("numpy", "tolist")
#: What hands on the memory of a tensor: to code that is not torch's, to another process, into a file.
_SHARES = ("data_ptr", "__dlpack__", "__reduce_ex__", "_typed_storage")


class OpListener:
    """Between `start` and `stop`, both on the thread whose ops are heard.

    Args:
        on_op: Called after each op with it, the types and the arguments that it got, its result and its time in ns.
        on_read: Called with each tensor that Python reads as a whole.
        on_shared: Called with these, and with those whose memory is handed on; also on other threads.
    """

    def __init__(
        self,
        on_op: Callable[[Any, Any, tuple[Any, Any], Any, int], None],
        on_read: Callable[[Any], None],
        on_shared: Callable[[Any], None],
    ) -> None:
        self._on_op = on_op
        self._on_read = on_read
        self._on_shared = on_shared
        self._mode: Any = None
        self._thread = -1
        self._patches = Patches()

    def start(self) -> None:
        """Hear the ops from now on."""
        self._thread = get_ident()
        for name in (*_READS, *_SHARES):
            self._patches.wrap(torch.Tensor, name, self._heard)
        self._mode = _ListeningMode(self._on_op)
        self._mode.__enter__()

    def stop(self) -> bool:
        """Hear no more; returns whether it has heard until now."""
        mode, self._mode = self._mode, None
        if mode is None:
            return False
        mode.__exit__(None, None, None)
        self._patches.undo()
        return True

    def _heard(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # perfkit reads samples of tensors meanwhile.
            if self._mode is not None and owner_of(sys._getframe(1).f_code.co_filename) != "perfkit":
                self._on_shared(tensor)
                if method.__name__ in _READS and get_ident() == self._thread:
                    self._on_read(tensor)
            return method(tensor, *args, **kwargs)

        return read


class _ListeningMode(TorchDispatchMode):
    """Calls ``add`` after each op, with its result and its time."""

    def __init__(self, add: Callable[[Any, Any, tuple[Any, Any], Any, int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's class has no annotations
        self._add = add

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The thread's own time: one op of one step is measured, and another program may take the core meanwhile.
        started_ns = time.thread_time_ns()
        out = func(*args, **kwargs)
        self._add(func, types, (args, kwargs), out, time.thread_time_ns() - started_ns)
        return out
