"""Start and end of a thread's dry run: the first listener starts it, the last one ends it."""

from __future__ import annotations

from typing import Any

from perfkit.errors import UsageError
from perfkit.syncs.dry_run import device_marks, op_kernels, torch_patches
from perfkit.syncs.dry_run.function_calls import FunctionMode
from perfkit.syncs.dry_run.simulated_cuda import SIMULATED_CUDA
from perfkit.syncs.dry_run.thread_state import DryRun, this_thread
from perfkit.syncs.sync_log import SyncListener


def enter(listener: SyncListener, *, simulate: bool, explicit: bool, scope: int) -> DryRun:
    """Report the syncs of this thread to ``listener``; ``scope`` is that of its marks.

    Raises:
        UsageError: an outer dry run of this thread follows a script on the CPU, and ``explicit`` arguments of this one
            request a simulated device.
    """
    run = this_thread.run
    if run is None:
        run = DryRun(simulate=simulate)
        device_marks.begin(simulate=simulate, scope=scope)
        try:
            _install(run)
        except BaseException:
            run.patches.undo()
            raise
        this_thread.run = run
    elif explicit and simulate and not run.simulate:
        raise UsageError(
            "detect_syncs(simulate=True) cannot run inside a dry run that follows a script on the CPU (device_of=): "
            "leave simulate= out, then the inner one follows the outer one"
        )
    run.listeners.append(listener)
    return run


def _install(run: DryRun) -> None:
    for shared in (torch_patches.FOLLOWED_CALLS, SIMULATED_CUDA) if run.simulate else (torch_patches.FOLLOWED_CALLS,):
        shared.acquire()
        run.patches.add(f"dry run: {shared.name}", shared.release)
    op_kernels.start()
    run.patches.add("dry run: op kernels", op_kernels.stop)
    mode: Any = FunctionMode(run)  # Any: torch's modes are untyped
    run.function_mode = mode
    mode.__enter__()
    run.patches.add("dry run: function mode", lambda: torch_patches.remove_function_mode(mode))


def leave(listener: SyncListener, run: DryRun) -> None:
    """Stop reporting to ``listener``.

    Raises:
        UsageError: called from another thread than `enter`.
    """
    if this_thread.run is not run:
        raise UsageError("a dry run must be stopped in the thread that started it: torch modes belong to one thread")
    run.listeners.remove(listener)
    if not run.listeners:
        this_thread.run = None
        run.patches.undo()
