"""The dry run: find the syncs that a GPU would make, on a CPU, with real values.

Every tensor stays an ordinary CPU tensor; `marks` say which count as being on the device. Two torch modes
follow the program: the dispatch mode sees every op, hands the marks on to results and asks the `table`
whether the op syncs; the function mode sees every Python call, which names the sync (``bool(tensor)``)
and, where the script asks for cuda (``simulate``), pretends that the device is there.

Torch modes belong to one thread, so there is one `DryRun` per thread, shared by nested detections. Not seen:
other threads and processes, NCCL, kernels that are not torch's. Host and device operands may be mixed where
CUDA would raise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _device, _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.errors import UsageError
from perfkit.syncs import dry_shims
from perfkit.syncs.dry_calls import FOLLOWED_CPU, HANDLERS, SCALAR_READS, with_device
from perfkit.syncs.dry_shims import current, set_current
from perfkit.syncs.ledger import Cause, Listener, report
from perfkit.syncs.marks import any_on_device, on_device, put_on_device
from perfkit.syncs.patches import note_installed, note_removed
from perfkit.syncs.table import Rule, rule_for

# Private to torch: the two stacks of modes. A test tells when they move.
_overrides: Any = torch.overrides
_dispatch_modes: Any = _python_dispatch


class DryRun:
    """The state of this thread's dry run, and how long it is in place: while it has listeners."""

    def __init__(self, *, simulate: bool) -> None:
        self.simulate = simulate
        self.listeners: list[Listener] = []
        #: How often a tensor on the simulated device took part in anything; each detection looks at the difference.
        self.device_uses = 0
        #: Open Python calls into torch, innermost last; what syncs inside one is named after it.
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self.in_backward = False
        #: Ops whose rule failed, and why: a defect of the table must not stop a training.
        self.unjudged: dict[str, str] = {}
        self._muted = 0
        self.muted_syncs = 0
        # Any: torch's modes are untyped.
        make: Any = _DispatchMode
        self.dispatch_mode: Any = make()
        self.function_mode: Any = _FunctionMode()
        self.dispatch_mode.run = self.function_mode.run = self

    def install(self) -> None:
        """Put shims and modes in place; if one fails, the others are taken back."""
        dry_shims.install(simulate=self.simulate)
        try:
            self.dispatch_mode.__enter__()
            note_installed("dry run: dispatch mode")
            self.function_mode.__enter__()
            note_installed("dry run: function mode")
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take modes and shims away, also where the program entered modes meanwhile and has them still open."""
        note_removed("dry run: function mode")
        note_removed("dry run: dispatch mode")
        try:
            _remove_function_mode(self.function_mode)
            _remove_dispatch_mode(self.dispatch_mode)
        finally:
            dry_shims.remove(simulate=self.simulate)

    def sync(self, cause: Cause, *, raw_syncs: int = 1) -> None:
        """Report a sync at the line that called into torch."""
        self.device_uses += 1
        if self._muted:
            self.muted_syncs += 1
            return
        with self.muted():  # a callback may compute with tensors
            report(self.listeners, cause, sys._getframe(1), raw_syncs=raw_syncs)

    def judge(self, op: _Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
        """Ask the table whether an op that has a rule syncs here."""
        assert op.rule is not None
        try:
            return op.rule(args, kwargs)
        except Exception as error:  # noqa: BLE001 - told in the detection's note
            self.unjudged[op.func.name()] = f"{type(error).__name__}: {error}"
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
        _, args, kwargs = self.calls[-1]
        return _takes_device_tensor(args, kwargs)

    def stays_on_device(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether a copy_ that crosses the marks is none on CUDA."""
        if func._schema.name != "aten::copy_":
            return False
        if self.calls:
            # x[i] = 1.0 is a fill on CUDA.
            call, call_args, _ = self.calls[-1]
            return call is torch.Tensor.__setitem__ and not isinstance(call_args[2], torch.Tensor)
        if self.in_backward:
            # C++ moves gradients into buffers that it made out of the modes' sight (DDP's buckets).
            put_on_device(args[0])
        return self.in_backward

    def name_read(self, cause: Cause) -> Cause:
        """Name the read of a value after the Python call that needed it."""
        if not self.calls:
            return cause
        call = self.calls[-1][0]
        name = SCALAR_READS.get(call)
        if name is None:
            name = f"item inside {getattr(call, '__name__', 'a torch call')}"
        return cause._replace(op=name)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around the autograd engine: it was called with the function mode off, and hooks need it on."""
        calls, self.calls = self.calls, []
        was, self.in_backward = self.in_backward, True
        entered = self.function_mode not in _overrides._get_current_function_mode_stack()
        if entered:
            self.function_mode.__enter__()
        try:
            yield
        finally:
            if entered:
                _remove_function_mode(self.function_mode)
            self.calls, self.in_backward = calls, was

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


class _Op(NamedTuple):
    """What the dispatch mode needs to know of an op, looked up once."""

    func: Any
    rule: Rule | None
    reads_scalar: bool
    composite: bool
    takes_tensors: bool
    #: Position and name of the arguments that are written to, which on CUDA must be where the others are.
    written: tuple[tuple[int, str], ...]
    #: Per result: is it new memory (no view, not an argument given back)? Empty where none is.
    fresh: tuple[bool, ...]


#: Results that stay on the host though the inputs are on the device: op -> their positions.
_HOST_RESULTS = {"aten::_pack_padded_sequence": (1,)}

#: In-place ops that may write to the host what they read on the device.
_CROSSING = ("aten::copy_", "aten::_foreach_copy_", "aten::fill_", "aten::set_", "aten::index_put_")

# By id, as hashing an op runs Python code; `_Op.func` keeps the id taken.
_ops: dict[int, _Op] = {}


def _written(schema: Any) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(schema.arguments)
    return tuple((n, a.name) for n, a in arguments if a.alias_info is not None and a.alias_info.is_write)


def _describe(func: Any) -> _Op:
    schema = func._schema
    host = _HOST_RESULTS.get(schema.name, ())
    fresh = tuple(result.alias_info is None and n not in host for n, result in enumerate(schema.returns))
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    op = _ops[id(func)] = _Op(
        func=func,
        rule=rule_for(schema.name, schema.overload_name),
        reads_scalar=schema.name == "aten::_local_scalar_dense",
        composite=has_kernel(func.name(), "CompositeImplicitAutograd"),
        takes_tensors=any("Tensor" in str(argument.type) for argument in schema.arguments),
        written=() if schema.name in _CROSSING else _written(schema),
        fresh=fresh if any(fresh) else (),
    )
    return op


def _takes_device_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if on_device(arg):
                return True
        elif type(arg) in (list, tuple):
            for item in arg:
                if isinstance(item, torch.Tensor) and on_device(item):
                    return True
    return bool(kwargs) and any_on_device(kwargs)


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook untyped
    """Sees every op below autograd: hands marks on, and asks the table about ops with a device input."""

    run: DryRun

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would load Dynamo (a second) at the first op and wrap each later one. There is nothing to
        # skip: in a dry run compiled functions run eagerly.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op = _ops.get(id(func)) or _describe(func)
        run = self.run
        # In a backward the function mode is on here too, and would hear of each storage that is looked at.
        with torch._C.DisableTorchFunction():
            if not _takes_device_tensor(args, kwargs):
                result = func(*args, **kwargs)
                if not op.takes_tensors and run.composite_is_on_device():
                    # On CUDA this factory inside a composite would have made its tensor on the device.
                    _mark_results(op, result)
                return result
            if op.composite:
                # Under inference_mode composites come whole; their parts are what syncs.
                with self:
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            run.device_uses += 1
            if op.rule is not None:
                cause = run.judge(op, args, kwargs)
                if cause is not None and not run.stays_on_device(func, args):
                    run.sync(run.name_read(cause) if op.reads_scalar else cause)
            result = func(*args, **kwargs)
            _mark_results(op, result)
            if op.written and not run.simulate:
                # `total += loss` in a script on the CPU: on CUDA it runs only with `total` on the device too.
                for position, name in op.written:
                    _put_all_on_device(args[position] if position < len(args) else kwargs.get(name))
            return result


def _mark_results(op: _Op, result: Any) -> None:
    fresh = op.fresh
    if not fresh:
        return
    if len(fresh) == 1:
        _put_all_on_device(result)
    else:
        for item, is_fresh in zip(result, fresh, strict=True):
            if is_fresh:
                _put_all_on_device(item)


def _put_all_on_device(value: Any) -> None:
    """Mark a tensor, or each tensor of a list (foreach)."""
    if isinstance(value, torch.Tensor):
        put_on_device(value)
    elif isinstance(value, (list, tuple)):
        for tensor in value:
            if isinstance(tensor, torch.Tensor):
                put_on_device(tensor)


class _FunctionMode(TorchFunctionMode):
    """Sees every Python call into torch: answers some for the simulated device, remembers the others by name."""

    run: DryRun

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        run = self.run
        calls = run.calls
        calls.append((func, args, kwargs))
        try:
            handler = HANDLERS.get(func)
            if handler is not None:
                return handler(run, func, args, kwargs)
            if kwargs.get("device") is not None:
                return with_device(run, func, args, kwargs)
            return func(*args, **kwargs)
        finally:
            calls.pop()


def _remove_function_mode(mode: Any) -> None:
    """Take a mode off the function mode stack, also from below others that are still open."""
    if mode not in _overrides._get_current_function_mode_stack():
        return
    above = []
    while (top := _overrides._pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _overrides._push_mode(other)


def _remove_dispatch_mode(mode: Any) -> None:
    """Take a mode off the dispatch mode stack, also from below others that are still open."""
    if mode not in _dispatch_modes._get_current_dispatch_mode_stack():
        return
    above = []
    while _dispatch_modes._get_current_dispatch_mode() is not mode:
        above.append(_dispatch_modes._pop_mode())
    mode.__exit__(None, None, None)
    for other in reversed(above):
        _dispatch_modes._push_mode(other)


def enter(listener: Listener, *, simulate: bool, explicitly: bool) -> DryRun:
    """Let ``listener`` hear of the syncs of this thread; the first one puts the dry run in place.

    Raises:
        UsageError: an outer dry run of this thread follows a script on the CPU, and this one was asked
            (``explicitly``) to simulate the device.
    """
    run = current()
    if run is None:
        run = DryRun(simulate=simulate)
        run.install()
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
        run.remove()
