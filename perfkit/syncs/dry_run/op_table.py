"""The table of syncing ops: which ATen ops make the host wait for the device, and when.

Each row is a rule ``(args, kwargs) -> Cause | None``, applied only if an input of the op is on the simulated device.
The rows come from PyTorch's own test of its sync debug mode, its op tags and its CUDA sources; they have not yet been
checked on a GPU. A sync that depends on something unknown on a CPU (the library that runs the op, how a copy is staged)
is a "may", with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perfkit.syncs.dry_run.device_marks import is_pinned, on_device
from perfkit.syncs.sync_log import PAGEABLE, Cause

Rule = Callable[[tuple[Any, ...], dict[str, Any]], Cause | None]


def upload(op: str, source: torch.Tensor, *, non_blocking: bool, explicit: bool = True) -> Cause | None:
    """The cause of a copy to the device: certain if blocking, "may" if non-blocking from pageable memory."""
    if not non_blocking:
        return Cause("copy-h2d", op, explicit=explicit)
    if is_pinned(source):
        return None
    return Cause("copy-h2d", op, "may", PAGEABLE, explicit)


def _always(cause: Cause) -> Rule:
    return lambda args, kwargs: cause


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _index_cause(target: Any, indices: Any) -> Cause | None:
    if isinstance(target, torch.Tensor) and not on_device(target):
        return Cause("copy-d2h", "host tensor indexed by a device tensor")
    for index in indices:
        if not isinstance(index, torch.Tensor):
            continue
        is_mask = index.dtype in (torch.bool, torch.uint8)
        if on_device(index):
            if is_mask:
                return Cause("shape", "boolean mask index")
        elif is_mask:
            reason = "whether the copy of a mask on the host waits depends on the torch version"
            return Cause("copy-h2d", "index by a host mask", "may", reason)
        elif index.numel():
            return Cause("copy-h2d", "index by a host tensor or list")
    return None


def _index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    return _index_cause(args[0], args[1])


def _index_put(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    value = args[2]
    cause = _index_cause(args[0], args[1])
    # x[mask] = 1.0 becomes masked_fill, which reads no shape.
    if cause is not None and cause.op == "boolean mask index":
        if value.numel() == 1 and not on_device(value):
            return None
        return Cause("shape", "boolean mask assignment")
    return cause


def _copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    target, source = args[0], args[1]
    if on_device(target) == on_device(source) or not source.numel():
        return None
    non_blocking = bool(_argument(args, kwargs, 2, "non_blocking", False))
    if on_device(target):
        return upload("copy_", source, non_blocking=non_blocking)
    if non_blocking and is_pinned(target):
        return None
    # A non-blocking copy into pageable memory returns only when the data has arrived.
    return Cause("copy-d2h", "copy_", explicit=True)


def _fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    return None if on_device(args[0]) else Cause("read", "fill_ of a host tensor by a device value")


def _masked_fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    return Cause("read", "masked_fill by a device value") if on_device(_argument(args, kwargs, 2, "value")) else None


def _repeat_interleave(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    return None if kwargs.get("output_size") is not None else Cause("shape", "repeat_interleave")


def _histc(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    # If min == max (the default: 0, 0), the range is read from the data.
    given = _argument(args, kwargs, 2, "min", 0) != _argument(args, kwargs, 3, "max", 0)
    return None if given else Cause("read", "histc without a range")


_LINALG = "the error check of a decomposition"
_CUDNN = "torch's own kernel copies the lengths and waits, cuDNN's does not"
_SOLVER = "it depends on the solver library that torch selects"

#: ATen op, with or without its overload -> its rule. ``_local_scalar_dense`` reads one value.
_RULES: dict[str, Rule] = {
    "aten::_local_scalar_dense": _always(Cause("read", "item")),
    "aten::nonzero": _always(Cause("shape", "nonzero")),
    "aten::masked_select": _always(Cause("shape", "masked_select")),
    "aten::_unique": _always(Cause("shape", "unique")),
    "aten::_unique2": _always(Cause("shape", "unique")),
    "aten::unique_dim": _always(Cause("shape", "unique")),
    "aten::unique_consecutive": _always(Cause("shape", "unique_consecutive")),
    "aten::unique_dim_consecutive": _always(Cause("shape", "unique_consecutive")),
    "aten::bincount": _always(Cause("shape", "bincount")),
    "aten::repeat_interleave.Tensor": _repeat_interleave,
    "aten::equal": _always(Cause("read", "equal")),
    "aten::allclose": _always(Cause("read", "allclose")),
    "aten::multinomial": _always(Cause("read", "multinomial")),
    "aten::mode": _always(Cause("read", "mode")),
    "aten::histc": _histc,
    "aten::normal.Tensor_Tensor": _always(Cause("read", "normal with a std tensor")),
    "aten::normal.float_Tensor": _always(Cause("read", "normal with a std tensor")),
    "aten::embedding_renorm_": _always(Cause("shape", "embedding with max_norm")),
    "aten::_to_sparse": _always(Cause("shape", "to_sparse")),
    "aten::_coalesce": _always(Cause("shape", "coalesce")),
    "aten::_nested_tensor_from_mask": _always(Cause("shape", "nested tensor from a mask")),
    "aten::_nested_tensor_from_mask_left_aligned": _always(Cause("read", "nested tensor from a mask")),
    "aten::_linalg_check_errors": _always(Cause("read", _LINALG)),
    "aten::_linalg_svd": _always(Cause("read", _LINALG)),
    "aten::_linalg_eigh": _always(Cause("read", _LINALG)),
    "aten::linalg_eig": _always(Cause("read", _LINALG)),
    "aten::_linalg_eigvals": _always(Cause("read", _LINALG)),
    "aten::linalg_lstsq": _always(Cause("read", "lstsq", "may", _SOLVER)),
    "aten::_ctc_loss": _always(Cause("copy-h2d", "ctc_loss", "may", _CUDNN)),
    "aten::index.Tensor": _index,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::copy_": _copy,
    "aten::fill_.Tensor": _fill,
    "aten::masked_fill.Tensor": _masked_fill,
    "aten::masked_fill_.Tensor": _masked_fill,
}


def rule_for(name: str, overload: str) -> Rule | None:
    """The rule of an op by schema name ("aten::nonzero") and overload name, None if the op never syncs."""
    return _RULES.get(f"{name}.{overload}") or _RULES.get(name)
