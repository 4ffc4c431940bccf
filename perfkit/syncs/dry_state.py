"""The state of one thread's dry run: who listens, which calls into torch are open, how a sync is named and told.

What sees the program stands beside it: `dry_ops` (every op), `dry_calls` (Python calls), `dry_shims` (what is
replaced in torch); `dry_run` puts them in place.
"""

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
from perfkit.syncs.device_marks import any_on_device, on_device
from perfkit.syncs.op_table import Rule
from perfkit.syncs.sync_log import Cause, Listener, report

CUDA = torch.device("cuda", 0)

# What `.device` answers for a device tensor where the script runs on the CPU: equal to any other CPU device,
# but this very object, so that `torch.zeros(3, device=x.device)` is known to follow x.
FOLLOWED_CPU = torch.device("cpu")

#: What the read of one value inside these calls is called.
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

#: Calls that make tensors of Python data inside: on the host, wherever their tensor arguments are.
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
    """The state of this thread's dry run."""

    def __init__(self, *, simulate: bool) -> None:
        self.simulate = simulate
        self.listeners: list[Listener] = []
        self.patches = Patches()
        #: How often a tensor on the simulated device took part in anything; each detection looks at the difference.
        self.device_uses = 0
        #: Open Python calls into torch, innermost last; what syncs inside one is named after it.
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        #: The mode that sees the Python calls of this thread.
        self.function_mode: Any = None
        self.in_backward = False
        #: Ops whose rule failed, and why: a defect of the table must not stop a training.
        self.unjudged: dict[str, str] = {}
        #: Lines that CUDA would refuse for tensors on the host beside others on the device -> the op.
        self.mixed: dict[str, str] = {}
        self._muted = 0
        self.muted_syncs = 0

    @property
    def muted_now(self) -> bool:
        """Whether nothing is reported at present."""
        return self._muted > 0

    def note_mixed(self, op: str) -> None:
        """Note the program's line for an op that takes host and device tensors."""
        site = find_callsite(sys._getframe(1))
        if site is not None:
            self.mixed.setdefault(f"{site.file}:{site.line}", op)

    def sync(self, cause: Cause, *, raw_syncs: int = 1) -> None:
        """Report a sync at the line that called into torch."""
        self.device_uses += 1
        if self._muted:
            self.muted_syncs += 1
            return
        with self.muted():  # a callback may compute with tensors
            report(self.listeners, cause, sys._getframe(1), raw_syncs=raw_syncs)

    def judge(self, rule: Rule, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
        """Ask the rule of an op whether it syncs here."""
        try:
            return rule(args, kwargs)
        except Exception as error:  # noqa: BLE001 - told in the detection's note
            self.unjudged[op] = f"{type(error).__name__}: {error}"
            return None

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Report nothing from inside: what happens there is already told, or is the CPU's own way."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def told_once(self, cause: Cause, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that is one sync to a user, however many waits it makes inside."""
        before = self.muted_syncs
        with self.muted():
            result = func(*args, **kwargs)
        self.sync(cause, raw_syncs=max(1, self.muted_syncs - before))
        return result

    def composite_is_on_device(self) -> bool:
        """Whether a factory op without tensor inputs is part of work on the device, in backward or in a composite."""
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
        """Whether a ``device=`` argument means the simulated device."""
        if device is None:
            return False
        if not self.simulate:
            return device is FOLLOWED_CPU
        if isinstance(device, int):
            return True
        return torch.device(device).type == "cuda"

    def default_is_device(self) -> bool:
        """Whether new tensors go to the simulated device (``torch.set_default_device``, ``with torch.device``)."""
        default = _device.CURRENT_DEVICE
        return self.simulate and default is not None and default.type == "cuda"


_local = threading.local()


def current() -> DryRun | None:
    """The dry run of this thread, None where there is none."""
    run: DryRun | None = getattr(_local, "run", None)
    return run


def set_current(run: DryRun | None) -> None:
    """Make ``run`` the dry run of this thread, or say that it has none."""
    _local.run = run


def takes_device_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call gets a device tensor, by itself or in a list or tuple."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if on_device(arg):
                return True
        elif type(arg) in (list, tuple):
            for item in arg:
                if isinstance(item, torch.Tensor) and on_device(item):
                    return True
    return bool(kwargs) and any_on_device(kwargs)
