"""What every dry run replaces in torch: the backward and ``torch.save`` are followed, compiled functions run eagerly.

The replaced attributes are process-wide. Each checks whether the calling thread has a dry run, and calls torch's own
function if not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.graph
import torch.overrides

from perfkit import _torch_versions
from perfkit._patches import Patches, SharedPatches
from perfkit.syncs.dry_run import op_kernels
from perfkit.syncs.dry_run.device_marks import any_on_device, mark_on_device
from perfkit.syncs.dry_run.thread_state import DryRun, this_thread
from perfkit.syncs.sync_log import Cause

# Private to torch: the stack of function modes. A test fails when it moves.
_overrides: Any = torch.overrides


def remove_function_mode(mode: Any) -> None:
    """Take a mode off the function mode stack, also from below others that the program still has open."""
    if mode not in _overrides._get_current_function_mode_stack():
        # The dry run ends inside a call that the mode receives, as a step that ends with its backward: torch puts the
        # mode back after the call.
        _drop_next_push(mode)
        return
    above = []
    while (top := _overrides._pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _overrides._push_mode(other)


def _drop_next_push(mode: Any) -> None:
    push = _overrides._push_mode

    def push_others(pushed: Any) -> None:
        if pushed is mode:
            _overrides._push_mode = push
        else:
            push(pushed)

    _overrides._push_mode = push_others


@contextmanager
def _backward(run: DryRun) -> Iterator[None]:
    """Around the autograd engine, which is called with the function mode off; its hooks need the mode on."""
    calls, run.calls = run.calls, []
    was, run.in_backward = run.in_backward, True
    entered = run.function_mode not in _overrides._get_current_function_mode_stack()
    if entered:
        run.function_mode.__enter__()
    try:
        yield
    finally:
        if entered:
            remove_function_mode(run.function_mode)
        run.calls, run.in_backward = calls, was


def _run_unwatched(engine: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the engine inside a transform of `torch.func`, where no op of it can be seen; its results are marked."""
    on_device = any_on_device(tensors)
    with op_kernels.paused():
        gradients = engine(tensors, *args, **kwargs)
    if on_device and gradients is not None:
        mark_on_device([one for one in gradients if one is not None])
    return gradients


def _follow_backward(patches: Patches) -> None:
    # Private to torch; a test fails when it moves. Both modules hold it under their own name.
    engine = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        run = this_thread.run
        if run is None:
            return engine(*args, **kwargs)
        if op_kernels.in_transform(args):
            return _run_unwatched(engine, *args, **kwargs)
        with _backward(run):
            return engine(*args, **kwargs)

    patches.set(torch.autograd.graph, "_engine_run_backward", run_backward)
    patches.set(torch.autograd, "_engine_run_backward", run_backward)


def _follow_save(patches: Patches) -> None:
    save = torch.save

    def saving(obj: Any, *args: Any, **kwargs: Any) -> Any:
        run = this_thread.run
        if run is None or not any_on_device(obj):
            return save(obj, *args, **kwargs)
        return run.report_once(Cause("copy-d2h", "torch.save", explicit=True), save, (obj, *args), kwargs)

    patches.set(torch, "save", saving)


def _compile_eagerly(patches: Patches) -> None:
    # Dynamo would trace the modes into its graphs, and a fused kernel hides the ops that sync.
    def force_eager() -> None:
        patches.add("torch.compiler stance", _torch_versions.compile_nothing(torch))

    if "torch._dynamo" in sys.modules:
        force_eager()
        return
    # Loading Dynamo takes a second, so not before the program does.
    compile_function = torch.compile
    forced = False

    def compiling(*args: Any, **kwargs: Any) -> Any:
        nonlocal forced
        compiled = compile_function(*args, **kwargs)
        if not forced:
            forced = True
            force_eager()
        return compiled

    patches.set(torch, "compile", compiling)


FOLLOWED_CALLS = SharedPatches("followed calls", _follow_backward, _follow_save, _compile_eagerly)
