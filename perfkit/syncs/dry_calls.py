"""Python calls into torch that a dry run answers for the simulated device, or counts as one sync.

Only calls whose answer differs between the device and the host stand here: what asks for the device,
what moves data, what makes tensors with ``device=``, what reads a whole tensor. All others run as they are.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch.utils import _device

from perfkit._code_owner import line_of, owner_of
from perfkit.syncs.device_marks import (
    any_on_device,
    is_pinned,
    on_device,
    pin,
    put_all_on_device,
    put_on_device,
    take_off_device,
)
from perfkit.syncs.dry_state import CUDA, FOLLOWED_CPU, DryRun, takes_device_tensor
from perfkit.syncs.op_table import upload
from perfkit.syncs.sync_log import Cause

Call = Callable[..., Any]
Handler = Callable[[DryRun, Call, tuple[Any, ...], dict[str, Any]], Any]


def _program_frame() -> FrameType | None:
    """The frame that made the call: the innermost one that is not perfkit's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner_of(frame.f_code.co_filename) == "perfkit":
        frame = frame.f_back
    return frame


# What asks where a tensor is.


def _device_of(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not on_device(args[0]):
        return func(*args, **kwargs)
    frame = _program_frame()
    if frame is not None and frame.f_code.co_filename.endswith("checkpoint.py"):
        # checkpoint compares devices between a hook that runs without modes and the recomputation with them.
        return func(*args, **kwargs)
    return CUDA if run.simulate else FOLLOWED_CPU


def _answer(on: Any) -> Handler:
    """Answer ``on`` for a device tensor of a script that asks for cuda, else the truth."""

    def handle(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return on if run.simulate and on_device(args[0]) else func(*args, **kwargs)

    return handle


# What moves data.


class _Move(NamedTuple):
    """The arguments of ``Tensor.to``. ``device`` is None where only the dtype changes."""

    device: Any
    dtype: torch.dtype | None
    non_blocking: bool
    copy: bool
    memory_format: torch.memory_format


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
        put_on_device(result)
    run.device_uses += 1
    return result


def _to_host(run: DryRun, tensor: torch.Tensor, move: _Move, op: str) -> torch.Tensor:
    # Without a wait `.to("cpu", non_blocking=True)` hands back pinned memory that is still being written.
    if not move.non_blocking and tensor.numel():
        run.sync(Cause("copy-d2h", op, explicit=True))
    result = tensor.to(dtype=move.dtype or tensor.dtype, copy=True, memory_format=move.memory_format)
    take_off_device(result)
    return result


def _names_cpu() -> bool:
    """Whether the line that made the call says "cpu" in so many letters."""
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
        # A script on the CPU gets the tensor itself back here, and may rely on that.
        return func(*args, **kwargs)
    if move.device is None or not on_device(tensor) or torch.device(move.device).type != "cpu":
        return func(*args, **kwargs)
    # A script on the CPU says `.to(device)` with a CPU device for what is `.to("cuda")` elsewhere.
    if run.simulate or _names_cpu():
        return _to_host(run, tensor, move, "to(cpu)")
    return func(*args, **kwargs)


def _cuda(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not run.simulate:
        return func(*args, **kwargs)
    non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    move = _Move(CUDA, None, bool(non_blocking), False, kwargs.get("memory_format", torch.preserve_format))
    return _to_device(run, args[0], move, "cuda")


def _cpu(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not on_device(args[0]):
        return func(*args, **kwargs)
    move = _Move("cpu", None, False, False, kwargs.get("memory_format", torch.preserve_format))
    return _to_host(run, args[0], move, "cpu")


def _pin_memory(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not run.simulate:
        return func(*args, **kwargs)
    if is_pinned(args[0]):
        return args[0]
    pinned = args[0].clone()
    pin(pinned)
    return pinned


def _is_pinned(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return is_pinned(args[0]) or func(*args, **kwargs)


def _deepcopy(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with run.muted():  # the CPU's way copies through an unmarked storage; on CUDA it stays on the device
        result = func(*args, **kwargs)
    if on_device(args[0]):
        put_on_device(result)
    return result


# What reads a whole tensor.


def _reads_whole(cause: Cause) -> Handler:
    """Count a call on a device tensor as one sync, whatever it does inside."""

    def handle(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not on_device(args[0]):
            return func(*args, **kwargs)
        return run.told_once(cause, func, args, kwargs)

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
    return run.told_once(Cause("copy-d2h", "numpy"), func, args, kwargs)


# What makes tensors.


def with_device(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call that has a ``device=``: on the CPU, with the result where the program wants it."""
    device = kwargs["device"]
    if run.wants_device(device):
        result = func(*args, **{**kwargs, "device": "cpu"})
        _put_all(run, result)
        return result
    result = func(*args, **kwargs)
    if isinstance(result, torch.Tensor) and run.simulate and torch.device(device).type == "cpu":
        take_off_device(result)
    return result


def _put_all(run: DryRun, result: Any) -> None:
    run.device_uses += 1
    put_all_on_device(result)


def _factory(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("device") is None and run.default_is_device():
        result = func(*args, **{**kwargs, "device": "cpu"})
        _put_all(run, result)
        return result
    return with_device(run, func, args, kwargs) if kwargs.get("device") is not None else func(*args, **kwargs)


def _from_data(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a tensor of data: ``tensor``, ``as_tensor``, ``asarray``, ``new_tensor``."""
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
            take_off_device(result)
            return result
        with run.muted():
            return func(*args, **kwargs)
    with run.muted():
        result = func(
            *args, **({**kwargs, "device": "cpu"} if device is not None or run.default_is_device() else kwargs)
        )
        if not data_here and func in (torch.as_tensor, torch.asarray):
            # On the CPU these two share the memory of the host's data, which must not become "device".
            result = result.clone()
    put_on_device(result)
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
        return run.told_once(Cause("shape", "one_hot"), func, args, kwargs)
    with run.muted():  # the check of the class numbers: CUDA makes it inside a kernel
        return func(*args, **kwargs)


def _checks_on_cpu_only(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with run.muted():
        return func(*args, **kwargs)


# What writes to a tensor in place.

#: In-place calls that may write to the host what they read on the device.
_CROSSING = ("copy_", "fill_", "set_", "index_put_", "_foreach_copy_")


def _in_place(run: DryRun, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    if takes_device_tensor(args, kwargs):
        run.device_uses += 1
        if not run.simulate and args:
            # `total += loss` in a script on the CPU: on CUDA it runs only with `total` on the device too.
            put_all_on_device(args[0])
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

_PRINT = Cause("print", "print(tensor)")
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)


def _getter(name: str) -> Any:
    # How a torch function mode spells the read of a property.
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
    torch.Tensor.__repr__: _reads_whole(_PRINT),
    torch.Tensor.__format__: _reads_whole(Cause("print", "format(tensor)")),
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _numpy,
    functional.one_hot: _one_hot,
    torch.quantile: _checks_on_cpu_only,
    torch.nanquantile: _checks_on_cpu_only,
    torch.Tensor.quantile: _checks_on_cpu_only,
    torch.Tensor.nanquantile: _checks_on_cpu_only,
}
