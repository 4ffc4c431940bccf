"""The state of one thread's dry run: its listeners, the open calls into torch, how a sync is named and reported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _device

from perfkit._callsite import find_callsite
from perfkit._patches import Patches
from perfkit.syncs.dry_run.device_marks import any_on_device, mark_on_device, on_device
from perfkit.syncs.dry_run.op_table import Rule
from perfkit.syncs.sync_log import Cause, SyncListener, report

CUDA = torch.device("cuda", 0)

# `.device` of a device tensor in a script that runs on the CPU: equal to any other CPU device, but recognized by
# identity, so `torch.zeros(3, device=x.device)` is on the device if x is.
FOLLOWED_CPU = torch.device("cpu")

#: Calls that read one value -> the operation that a user would name.
SCALAR_READS: dict[Any, str] = {
    torch.Tensor.item: "item",
    torch.Tensor.__bool__: "bool(tensor)",
    torch.Tensor.__float__: "float(tensor)",
    torch.Tensor.__int__: "int(tensor)",
    torch.Tensor.__index__: "int(tensor)",
    torch.Tensor.__complex__: "complex(tensor)",
    torch.Tensor.__getitem__: "int index",
    torch.Tensor.__setitem__: "int index",
    torch.Tensor.__contains__: "value in tensor",
    torch.Tensor.is_nonzero: "is_nonzero",
    torch.is_nonzero: "is_nonzero",
    torch.arange: "arange(tensor)",
}

#: Calls that create tensors from Python data: on the host, even if their tensor arguments are on the device.
_BUILD_ON_HOST = frozenset(
    (
        torch.Tensor.__getitem__,
        torch.Tensor.__setitem__,
        torch.tensor,
        torch.as_tensor,
        torch.asarray,
        torch.Tensor.new_tensor,
    )
)


class DryRun:
    """The dry run of one thread, shared by its nested detections."""

    def __init__(self, *, simulate: bool) -> None:
        self.simulate = simulate
        self.listeners: list[SyncListener] = []
        self.patches = Patches()
        #: Number of operations with a tensor on the simulated device; each detection reads the difference.
        self.device_uses = 0
        #: Open Python calls into torch, innermost last; what syncs inside one is named after it.
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        #: The mode that receives the Python calls of this thread.
        self.function_mode: Any = None
        self.in_backward = False
        #: Op -> the error of its rule: a defect of the table must not stop a training.
        self.rule_errors: dict[str, str] = {}
        #: Line -> the op there that CUDA would refuse, for mixing tensors on the host and on the device.
        self.mixed: dict[str, str] = {}
        #: Number of open `muted` blocks, and of syncs inside them.
        self.mutes = 0
        self.muted_syncs = 0

    def note_mixed(self, op: str) -> None:
        """Record the program's line of an op that gets host and device tensors."""
        site = find_callsite(sys._getframe(1))
        if site is not None:
            self.mixed.setdefault(f"{site.file}:{site.line}", op)

    def sync(self, cause: Cause, *, raw_syncs: int = 1) -> None:
        """Report a sync at the line that called into torch."""
        self.device_uses += 1
        if self.mutes:
            self.muted_syncs += 1
            return
        with self.muted():  # a callback may compute with tensors
            report(self.listeners, cause, sys._getframe(1), raw_syncs=raw_syncs)

    def apply_rule(self, rule: Rule, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
        """The cause of a sync in this call of an op, by its rule; None if it does not sync."""
        try:
            return rule(args, kwargs)
        except Exception as error:  # noqa: BLE001 - in the detection's note
            self.rule_errors[op] = f"{type(error).__name__}: {error}"
            return None

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Do not report syncs inside the block: they are already reported, or do not exist on CUDA."""
        self.mutes += 1
        try:
            yield
        finally:
            self.mutes -= 1

    def report_once(self, cause: Cause, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call and report it as one sync, however many waits are inside."""
        before = self.muted_syncs
        with self.muted():
            result = func(*args, **kwargs)
        self.sync(cause, raw_syncs=max(1, self.muted_syncs - before))
        return result

    def mark_created(self, result: Any) -> None:
        """Mark tensors that the program creates on the device."""
        self.device_uses += 1
        mark_on_device(result)

    def factory_is_on_device(self) -> bool:
        """Whether a factory op without tensor inputs is part of work on the device: a backward or a composite op."""
        if not self.calls:
            return self.in_backward
        call, args, kwargs = self.calls[-1]
        return call not in _BUILD_ON_HOST and takes_device_tensor(args, kwargs)

    def name_read(self, cause: Cause) -> Cause:
        """Name the read of a value after the Python call that needed it."""
        if not self.calls:
            return cause
        call = self.calls[-1][0]
        name = SCALAR_READS.get(call)
        if name is None:
            name = f"item inside {getattr(call, '__name__', 'a torch call')}"
        return cause._replace(op=name)

    def wants_device(self, device: Any) -> bool:
        """Whether this ``device=`` argument is the simulated device."""
        if device is None:
            return False
        if not self.simulate:
            return device is FOLLOWED_CPU
        if isinstance(device, int):
            return True
        return torch.device(device).type == "cuda"

    def default_is_device(self) -> bool:
        """Whether the simulated device is the default (``torch.set_default_device``, ``with torch.device``)."""
        default = _device.CURRENT_DEVICE
        return self.simulate and default is not None and default.type == "cuda"


class _ThisThread(threading.local):
    """``run`` is the dry run of the thread that reads it, None if there is none."""

    run: DryRun | None = None


this_thread = _ThisThread()


def simulation() -> DryRun | None:
    """The dry run of this thread if it simulates a CUDA device, else None."""
    run = this_thread.run
    return run if run is not None and run.simulate else None


def takes_device_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument of a call is a device tensor, or a list or tuple with one."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if on_device(arg):
                return True
        elif type(arg) in (list, tuple):
            for item in arg:
                if isinstance(item, torch.Tensor) and on_device(item):
                    return True
    return bool(kwargs) and any_on_device(kwargs)
