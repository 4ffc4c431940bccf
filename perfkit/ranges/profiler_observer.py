"""How perfkit detects that a torch profiler starts or stops: the one thing that it leaves patched.

Testing ``_is_profiler_enabled`` in every range would cost more than the rest of the range. So the two functions that
``torch.autograd.profiler`` runs at each start and stop (of ``torch.profiler.profile``, its schedule's windows,
``emit_nvtx`` and ``emit_itt``) are replaced by ones that call them first and then switch the listener. ``perfkit
doctor`` lists them; with ``PERFKIT_DISABLE=1`` nothing is replaced. A profile started from outside the process
(dynolog) is not detected and has no ranges.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from perfkit import _import_hook
from perfkit.ranges import dynamo, listeners, range_objects
from perfkit.ranges.listeners import PROFILER
from perfkit.ranges.profiler_listener import LISTENER

_patched: list[str] = []
_connected = False


def start() -> None:
    """Begin to observe the torch profiler: now if torch is loaded, else when it is imported."""
    if listeners.disabled:
        observe()
    else:
        _import_hook.when_imported("torch", observe)


def observe() -> None:
    """Observe the torch profiler if torch is loaded by now."""
    global _connected
    profiler = sys.modules.get("torch.autograd.profiler")
    # Torch may be half imported; its profiler module must be complete.
    if _connected or profiler is None or getattr(profiler.__spec__, "_initializing", False):
        return
    _connected = True
    try:
        range_objects.inherit(profiler.record_function)
        dynamo.torch_loaded()
        if not listeners.disabled:
            _patch(profiler)
    except Exception as error:  # noqa: BLE001 - an unknown version of torch: training continues without
        listeners.warn_once(f"ranges will not show in traces of the torch profiler: {type(error).__name__}: {error}")
    listeners.refresh()


def _patch(profiler: Any) -> None:
    LISTENER.load_torch(sys.modules["torch"])
    for name, on in (("_run_on_profiler_start", True), ("_run_on_profiler_stop", False)):
        setattr(profiler, name, _followed(getattr(profiler, name), on))
        _patched.append(f"torch.autograd.profiler.{name}")
    if profiler._is_profiler_enabled:
        listeners.switch(PROFILER, True)


def _followed(original: Callable[[], None], on: bool) -> Callable[[], None]:
    @functools.wraps(original)
    def run() -> None:
        original()
        listeners.switch(PROFILER, on)

    return run


def patched() -> list[str]:
    """What is patched for as long as the process lives."""
    return _patched if _connected or listeners.disabled else ["sys.meta_path: waiting for torch"]
