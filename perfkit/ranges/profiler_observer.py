"""The one thing perfkit leaves patched: how it learns that a torch profiler starts or stops.

Asking ``_is_profiler_enabled`` in every range would cost more than all else in it. So the two functions
that ``torch.autograd.profiler`` runs at each start and stop (of ``torch.profiler.profile``, its schedule's
windows, ``emit_nvtx`` and ``emit_itt``) are replaced by ones that call them first and then switch the
listener. Nothing of it is visible; ``perfkit doctor`` lists it; with ``PERFKIT_DISABLE=1`` it is not there.
A profile started from outside the process (dynolog) does not pass here and holds no ranges.

Where perfkit is imported before torch it has to learn that torch has come. A finder at the head of
``sys.meta_path`` is asked for every module that is imported; it never finds one, but looks whether torch's
profiler stands by now, and is gone as soon as it does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from perfkit.ranges import context, dynamo, listeners, profiler_listener

_patched: list[str] = []
_connected = False


class _WaitForTorch:
    """An import finder that finds nothing and observes that torch has been loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        observe()


_waiting = _WaitForTorch()


def observe() -> None:
    """Begin to observe the torch profiler: now if torch is loaded, else as soon as it is."""
    global _connected
    if _connected:
        return
    profiler = sys.modules.get("torch.autograd.profiler")
    # Torch may be half imported; its profiler module must have run to its end.
    if profiler is None or getattr(profiler.__spec__, "_initializing", False):
        if _waiting not in sys.meta_path and not listeners.disabled:
            sys.meta_path.insert(0, _waiting)
        return
    _connected = True
    if _waiting in sys.meta_path:
        sys.meta_path.remove(_waiting)
    try:
        context.inherit(profiler.record_function)
        dynamo.torch_loaded()
        if not listeners.disabled:
            _patch(profiler)
    except Exception as error:  # noqa: BLE001 - another torch than those known: training goes on without
        listeners.tell(f"ranges will not show in traces of the torch profiler: {type(error).__name__}: {error}")
    listeners.refresh()


def _patch(profiler: Any) -> None:
    profiler_listener.bind(sys.modules["torch"])
    for name, then in (
        ("_run_on_profiler_start", profiler_listener.started),
        ("_run_on_profiler_stop", profiler_listener.stopped),
    ):
        setattr(profiler, name, _followed(getattr(profiler, name), then))
        _patched.append(f"torch.autograd.profiler.{name}")
    if profiler._is_profiler_enabled:
        profiler_listener.started()


def _followed(original: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def run() -> None:
        original()
        then()

    return run


def patched() -> list[str]:
    """What is patched for as long as the process lives."""
    return [*_patched, *(["sys.meta_path: waiting for torch"] if _waiting in sys.meta_path else [])]
