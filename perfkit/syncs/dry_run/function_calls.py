"""Python calls into torch that a dry run changes: their result depends on the device, or they are one sync.

These are the calls that return the device, move data, create tensors with ``device=``, read a whole tensor, or write in
place. `FunctionMode` receives every call, runs the handler of those in `HANDLERS`, and runs all others unchanged.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from perfkit._code_owner import line_of, owner_of
from perfkit.syncs.dry_run.device_marks import (
    any_on_device,
    is_pinned,
    mark_on_device,
    mark_on_host,
    mark_pinned,
    on_device,
)
from perfkit.syncs.dry_run.op_table import upload
from perfkit.syncs.dry_run.thread_state import CUDA, FOLLOWED_CPU, DryRun, takes_device_tensor
from perfkit.syncs.sync_log import Cause

Call = Callable[..., Any]
Handler = Callable[[DryRun, Call, tuple[Any, ...], dict[str, Any]], Any]


def _program_frame() -> FrameType | None:
    """The frame of the call: the innermost one that is not perfkit's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner_of(frame.f_code.co_filename) == "perfkit":
        frame = frame.f_back
    return frame


# -- calls that return the device


def _device_of(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not on_device(args[0]):
        return func(*args, **kwargs)
    frame = _program_frame()
    if frame is not None and frame.f_code.co_filename.endswith("checkpoint.py"):
        # checkpoint compares the device in a hook, which runs without modes, with that in the recomputation.
        return func(*args, **kwargs)
    return CUDA if run.simulate else FOLLOWED_CPU


def _answer(on: Any) -> Handler:
    """Return ``on`` for a device tensor of a script that requests cuda, else the real value."""

    def handle(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return on if run.simulate and on_device(args[0]) else func(*args, **kwargs)

    return handle


# -- calls that move data


class _Move(NamedTuple):
    """The arguments of ``Tensor.to``. ``device`` is None if only the dtype changes."""

    device: Any
    dtype: torch.dtype | None = None
    non_blocking: bool = False
    copy: bool = False
    memory_format: torch.memory_format = torch.preserve_format


def _parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Move:
    rest = list(args)
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    first = rest[0] if rest else kwargs.get("other")
    if isinstance(first, torch.Tensor):
        rest = rest[1:]
        device, dtype = (FOLLOWED_CPU if on_device(first) else "cpu"), first.dtype
    elif isinstance(first, torch.dtype):
        dtype, rest = first, rest[1:]
    elif rest:
        device, rest = first, rest[1:]
        if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            dtype, rest = rest[0], rest[1:]
    flags = [*rest, *(None,) * (2 - len(rest))]
    return _Move(
        device,
        dtype,
        bool(kwargs.get("non_blocking", flags[0])),
        bool(kwargs.get("copy", flags[1])),
        kwargs.get("memory_format", torch.preserve_format),
    )


def _to_device(run: DryRun, tensor: torch.Tensor, move: _Move, op: str) -> torch.Tensor:
    here = on_device(tensor)
    result = tensor.to(dtype=move.dtype or tensor.dtype, copy=move.copy or not here, memory_format=move.memory_format)
    if not here:
        cause = upload(op, tensor, non_blocking=move.non_blocking)
        if cause is not None and tensor.numel():
            run.sync(cause)
        mark_on_device(result)
    run.device_uses += 1
    return result


def _to_host(run: DryRun, tensor: torch.Tensor, move: _Move, op: str) -> torch.Tensor:
    # `.to("cpu", non_blocking=True)` does not wait: it returns pinned memory that is still being written.
    if not move.non_blocking and tensor.numel():
        run.sync(Cause("copy-d2h", op, explicit=True))
    result = tensor.to(dtype=move.dtype or tensor.dtype, copy=True, memory_format=move.memory_format)
    mark_on_host(result)
    return result


def _names_cpu() -> bool:
    """Whether the line of the call contains the literal "cpu"."""
    frame = _program_frame()
    if frame is None:
        return False
    line = linecache.getline(frame.f_code.co_filename, line_of(frame))
    return '"cpu"' in line or "'cpu'" in line


def _to(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    move = _parse_to(args[1:], kwargs)
    if run.wants_device(move.device) or move.device is FOLLOWED_CPU:
        if run.simulate or on_device(tensor):
            return _to_device(run, tensor, move, "to")
        # A script on the CPU gets the tensor itself back here, and may depend on that.
        return func(*args, **kwargs)
    if move.device is None or not on_device(tensor) or torch.device(move.device).type != "cpu":
        return func(*args, **kwargs)
    # A script on the CPU writes `.to(device)` with a CPU device where it is `.to("cuda")` on a GPU.
    if run.simulate or _names_cpu():
        return _to_host(run, tensor, move, "to(cpu)")
    return func(*args, **kwargs)


def _cuda(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not run.simulate:
        return func(*args, **kwargs)
    non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    memory_format = kwargs.get("memory_format", torch.preserve_format)
    move = _Move(CUDA, non_blocking=bool(non_blocking), memory_format=memory_format)
    return _to_device(run, args[0], move, "cuda")


def _cpu(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not on_device(args[0]):
        return func(*args, **kwargs)
    move = _Move("cpu", memory_format=kwargs.get("memory_format", torch.preserve_format))
    return _to_host(run, args[0], move, "cpu")


def _pin_memory(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not run.simulate:
        return func(*args, **kwargs)
    if is_pinned(args[0]):
        return args[0]
    pinned = args[0].clone()
    mark_pinned(pinned)
    return pinned


def _is_pinned(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return is_pinned(args[0]) or func(*args, **kwargs)


def _deepcopy(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with run.muted():  # on the CPU it copies through an unmarked storage; on CUDA it stays on the device
        result = func(*args, **kwargs)
    if on_device(args[0]):
        mark_on_device(result)
    return result


# -- calls that read a whole tensor


def _reads_whole(cause: Cause) -> Handler:
    """Report a call on a device tensor as one sync, whatever it does inside."""

    def handle(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not on_device(args[0]):
            return func(*args, **kwargs)
        return run.report_once(cause, func, args, kwargs)

    return handle


def _numpy(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not on_device(tensor):
        return func(*args, **kwargs)
    forced = kwargs.get("force", False) if func is torch.Tensor.numpy else False
    if run.simulate and not forced:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return run.report_once(Cause("copy-d2h", "numpy"), func, args, kwargs)


# -- calls that create tensors


def _with_device(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call that has a ``device=`` on the CPU, and mark the result as being where the program wants it."""
    device = kwargs["device"]
    if run.wants_device(device):
        result = func(*args, **{**kwargs, "device": "cpu"})
        run.mark_created(result)
        return result
    result = func(*args, **kwargs)
    if isinstance(result, torch.Tensor) and run.simulate and torch.device(device).type == "cpu":
        mark_on_host(result)
    return result


def _factory(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("device") is not None:
        return _with_device(run, func, args, kwargs)
    if run.default_is_device():
        return _with_device(run, func, args, {**kwargs, "device": CUDA})
    return func(*args, **kwargs)


def _from_data(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Create a tensor from data: ``tensor``, ``as_tensor``, ``asarray``, ``new_tensor``."""
    new_tensor = func is torch.Tensor.new_tensor
    data = args[1] if new_tensor and len(args) > 1 else kwargs.get("data", kwargs.get("obj", args[0] if args else None))
    device = kwargs.get("device")
    data_here = isinstance(data, torch.Tensor) and on_device(data)
    if device is not None:
        wanted = run.wants_device(device)
    elif new_tensor:
        wanted = on_device(args[0])
    else:
        wanted = data_here or (run.default_is_device() and not isinstance(data, torch.Tensor))
    if isinstance(data, (list, tuple)):
        # A list of device tensors is read one by one.
        for _ in range(sum(map(any_on_device, data))):
            run.sync(Cause("read", "tensor(list of tensors)"))
    if not wanted:
        if data_here and run.simulate:
            run.sync(Cause("copy-d2h", "tensor(device=)", explicit=True))
            result = func(*args, **kwargs).clone()
            mark_on_host(result)
            return result
        with run.muted():
            return func(*args, **kwargs)
    with run.muted():
        result = func(
            *args, **({**kwargs, "device": "cpu"} if device is not None or run.default_is_device() else kwargs)
        )
        if not data_here and func in (torch.as_tensor, torch.asarray):
            # On the CPU these two share the memory of the host's data, which must not be marked.
            result = result.clone()
    mark_on_device(result)
    if data_here:
        run.device_uses += 1
    else:
        run.sync(Cause("copy-h2d", "tensor(device=)", explicit=True))
    return result


def _one_hot(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not on_device(args[0]):
        return func(*args, **kwargs)
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if classes == -1:
        return run.report_once(Cause("shape", "one_hot"), func, args, kwargs)
    with run.muted():  # the check of the class numbers, which CUDA makes inside a kernel
        return func(*args, **kwargs)


def _checks_on_cpu_only(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with run.muted():
        return func(*args, **kwargs)


# -- calls that write to a tensor in place

#: In-place calls that may read on the device and write to the host.
_CROSSING = ("copy_", "fill_", "set_", "index_put_", "_foreach_copy_")


def _in_place(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    if takes_device_tensor(args, kwargs):
        run.device_uses += 1
        if not run.simulate and args:
            # `total += loss` in a script on the CPU: on CUDA `total` would have to be on the device too.
            mark_on_device(args[0])
    return result


def _in_place_calls() -> list[Any]:
    found = [getattr(torch.Tensor, f"__i{name}__", None) for name in _IN_PLACE_OPERATORS]
    for owner in (torch.Tensor, torch):
        names = (name for name in dir(owner) if name.endswith("_") and not name.endswith("__"))
        found += [getattr(owner, name) for name in names if name not in _CROSSING]
    return [call for call in found if callable(call)]


_IN_PLACE_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)

_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)


def _getter(name: str) -> Any:
    # How a torch function mode receives the read of a property.
    return getattr(torch.Tensor, name).__get__


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(_in_place_calls(), _in_place),
    **{factory: _factory for factory in _device._device_constructors() if factory not in _FROM_DATA},
    **dict.fromkeys(_FROM_DATA, _from_data),
    _getter("device"): _device_of,
    _getter("is_cuda"): _answer(True),
    _getter("is_cpu"): _answer(False),
    torch.Tensor.get_device: _answer(0),
    torch.get_device: _answer(0),
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.cpu: _cpu,
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.is_pinned: _is_pinned,
    torch.Tensor.__deepcopy__: _deepcopy,
    torch.Tensor.tolist: _reads_whole(Cause("read", "tolist")),
    torch.Tensor.__repr__: _reads_whole(Cause("print", "print(tensor)")),
    torch.Tensor.__format__: _reads_whole(Cause("print", "format(tensor)")),
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _numpy,
    functional.one_hot: _one_hot,
    torch.quantile: _checks_on_cpu_only,
    torch.nanquantile: _checks_on_cpu_only,
    torch.Tensor.quantile: _checks_on_cpu_only,
    torch.Tensor.nanquantile: _checks_on_cpu_only,
}

_NOTHING: dict[str, Any] = {}


class FunctionMode(TorchFunctionMode):
    """Receives every Python call of a dry run into torch."""

    def __init__(self, run: DryRun) -> None:
        super().__init__()
        self.run = run

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
                return _with_device(run, func, args, kwargs)
            return func(*args, **kwargs)
        finally:
            calls.pop()
