"""The dry run: find the syncs that a GPU would make, on a CPU, with real values.

Every tensor stays an ordinary CPU tensor; `marks` say which count as being on the device. Two things follow
the program: `dry_ops` sees every op, hands the marks on to results and asks the `table` whether the op
syncs; a torch function mode sees every Python call, which names the sync (``bool(tensor)``) and, where the
script asks for cuda (``simulate``), pretends that the device is there.

Both belong to one thread, so there is one `DryRun` per thread, shared by nested detections. Not seen:
other threads and processes, NCCL, kernels that are not torch's. Host and device operands may be mixed where
CUDA would raise.
"""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

from perfkit.errors import UsageError
from perfkit.syncs import dry_ops, dry_shims
from perfkit.syncs.dry_calls import HANDLERS, with_device
from perfkit.syncs.dry_state import DryRun, current, set_current
from perfkit.syncs.sync_log import Listener


def _install(run: DryRun) -> None:
    """Put shims, op kernels and the function mode in place; if one fails, the others are taken back."""
    try:
        dry_shims.install(simulate=run.simulate)
        run.patches.add("dry run: shims", lambda: dry_shims.remove(simulate=run.simulate))
        dry_ops.start()
        run.patches.add("dry run: op kernels", dry_ops.stop)
        run.function_mode.__enter__()
        # The program may have entered function modes meanwhile and have them still open.
        run.patches.add("dry run: function mode", lambda: dry_shims.remove_function_mode(run.function_mode))
    except BaseException:
        run.patches.undo()
        raise


_NOTHING: dict[str, Any] = {}


class _FunctionMode(TorchFunctionMode):
    """Sees every Python call into torch: answers some for the simulated device, remembers the others by name."""

    run: DryRun

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run = self.run
        calls = run.calls
        calls.append((func, args, kwargs or _NOTHING))
        try:
            handler = HANDLERS.get(func)
            if handler is not None:
                return handler(run, func, args, kwargs or {})
            if not kwargs:
                return func(*args)
            if kwargs.get("device") is not None:
                return with_device(run, func, args, kwargs)
            return func(*args, **kwargs)
        finally:
            calls.pop()


def enter(listener: Listener, *, simulate: bool, explicitly: bool) -> DryRun:
    """Let ``listener`` hear of the syncs of this thread; the first one puts the dry run in place.

    Raises:
        UsageError: an outer dry run of this thread follows a script on the CPU, and this one was asked
            (``explicitly``) to simulate the device.
    """
    run = current()
    if run is None:
        run = DryRun(simulate=simulate)
        mode: Any = _FunctionMode()  # Any: torch's modes are untyped
        mode.run, run.function_mode = run, mode
        _install(run)
        set_current(run)
    elif explicitly and simulate and not run.simulate:
        raise UsageError(
            "detect_syncs(simulate=True) must not stand inside a dry run that follows a script on the CPU "
            "(device_of=): leave simulate= out, the inner one then follows the outer one"
        )
    run.listeners.append(listener)
    return run


def leave(listener: Listener, run: DryRun) -> None:
    """Stop telling ``listener``; the last one takes the dry run away.

    Raises:
        UsageError: called from another thread than `enter`.
    """
    if current() is not run:
        raise UsageError("a dry run must be stopped in the thread that started it: torch modes belong to one thread")
    run.listeners.remove(listener)
    if not run.listeners:
        set_current(None)
        run.patches.undo()
