"""The table of syncing ops: which ATen ops make the host wait for the device, and when.

Each row is a rule ``(args, kwargs) -> Cause | None``, applied only if an input of the op is on the simulated device.
Whether an op waits was measured for each version of torch in `waiting_ops`, by the blocking calls of the CUDA runtime,
run against a simulated one; the names, and the rules on arguments, are written here and tested against it. A sync that
depends on something unknown on a CPU (the library that runs the op, how a copy is staged) is a "may", with the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from perfkit._torch_versions import release
from perfkit.syncs.dry_run.device_marks import is_pinned, on_device
from perfkit.syncs.dry_run.waiting_ops import WAITING_OPS
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
    number = value.numel() == 1 and not on_device(value)
    if cause is not None and cause.op == "boolean mask index":
        # x[mask] = 1.0 becomes masked_fill, which reads no shape.
        alone = sum(isinstance(index, torch.Tensor) for index in args[1]) == 1
        return None if number and alone else Cause("shape", "boolean mask assignment")
    if cause is None and number and on_device(args[0]):
        # x[index] = 0.0 makes a tensor on the host, and copies it.
        return Cause("copy-h2d", "index assignment of a host value")
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


def _value_on_device(position: int, op: str) -> Rule:
    return lambda args, kwargs: Cause("read", op) if on_device(_argument(args, kwargs, position, "value")) else None


def _never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    return None


def _equal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    one, other = args[0], args[1]
    # Torch compares the sizes on the host, and takes memory to be equal to itself.
    if one.shape != other.shape or not one.numel():
        return None
    same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride() and one.dtype == other.dtype
    return None if same else Cause("read", "equal")


def _isin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    elements, sought = args[0], args[1]
    if _argument(args, kwargs, 2, "assume_unique", False):
        return None
    # Torch compares each with each below this number, as numpy does; else it sorts what is unique in both.
    few = sought.numel() < 10 * elements.numel() ** 0.145
    return None if few else Cause("shape", "isin of many elements")


#: The longest slices of which torch's own kernel finds the mode; Thrust, which sorts longer ones, waits.
_FUSED_MODE = 2048


def _mode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    tensor = args[0]
    long = tensor.dim() and tensor.size(_argument(args, kwargs, 1, "dim", -1)) > _FUSED_MODE
    return Cause("read", "mode of long slices") if long else None


def _repeat_interleave(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    return None if kwargs.get("output_size") is not None else Cause("shape", "repeat_interleave")


def _histc(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cause | None:
    # If min == max (the default: 0, 0), the range is read from the data.
    given = _argument(args, kwargs, 2, "min", 0) != _argument(args, kwargs, 3, "max", 0)
    return None if given else Cause("read", "histc without a range")


#: ATen op, with or without its overload -> the name of its sync. Whether it waits was measured: `waiting_ops`.
_NAMES: dict[str, Cause] = {
    "aten::_local_scalar_dense": Cause("read", "item"),  # reads one value
    "aten::nonzero": Cause("shape", "nonzero"),
    "aten::masked_select": Cause("shape", "masked_select"),
    **dict.fromkeys(("aten::_unique", "aten::_unique2", "aten::unique_dim"), Cause("shape", "unique")),
    "aten::unique_consecutive": Cause("shape", "unique_consecutive"),
    "aten::unique_dim_consecutive": Cause("shape", "unique_consecutive"),
    "aten::bincount": Cause("shape", "bincount"),
    "aten::allclose": Cause("read", "allclose"),
    "aten::normal.Tensor_Tensor": Cause("read", "normal with a std tensor"),
    "aten::normal.float_Tensor": Cause("read", "normal with a std tensor"),
    "aten::linspace": Cause("read", "linspace between tensors"),
    "aten::logspace": Cause("read", "logspace between tensors"),
    "aten::_to_sparse": Cause("shape", "to_sparse"),
    "aten::_coalesce": Cause("shape", "coalesce"),
    "aten::_nested_tensor_from_mask": Cause("shape", "nested tensor from a mask"),
    "aten::_nested_tensor_from_mask_left_aligned": Cause("read", "nested tensor from a mask"),
    **dict.fromkeys(
        (
            *("aten::_linalg_check_errors", "aten::_linalg_svd", "aten::_linalg_eigh"),
            *("aten::linalg_eig", "aten::_linalg_eigvals"),
        ),
        Cause("read", "the error check of a decomposition"),
    ),
}

_CUDNN = "torch's own kernel copies the lengths and waits, cuDNN's does not"
_SOLVER = "it depends on the solver library that torch selects"
_SOMETIMES = "it depends on the arguments: some of PyTorch's samples make it wait"

#: ATen op, with or without its overload -> its rule, if its arguments decide whether it waits.
_RULES: dict[str, Rule] = {
    "aten::repeat_interleave.Tensor": _repeat_interleave,
    "aten::equal": _equal,
    "aten::mode": _mode,
    "aten::isin.Tensor_Tensor": _isin,
    "aten::histc": _histc,
    **{
        f"aten::{name}": _always(Cause("read", name.removeprefix("linalg_"), "may", _SOLVER))
        for name in ("linalg_lstsq", "linalg_lu", "linalg_lu_factor_ex", "linalg_ldl_solve")
    },
    "aten::_ctc_loss": _always(Cause("copy-h2d", "ctc_loss", "may", _CUDNN)),
    "aten::index.Tensor": _index,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::copy_": _copy,
    "aten::_to_copy": _never,  # `function_calls` follows the moves of tensors
    "aten::fill_.Tensor": _fill,
    **dict.fromkeys(
        ("aten::masked_fill.Tensor", "aten::masked_fill_.Tensor"), _value_on_device(2, "masked_fill by a device value")
    ),
    **dict.fromkeys(
        ("aten::index_fill.int_Tensor", "aten::index_fill_.int_Tensor"),
        _value_on_device(3, "index_fill by a device value"),
    ),
}


@functools.cache
def _measured_on(version: str) -> str:
    """The newest torch with a table that is not newer than ``version``, else the oldest."""
    older = [one for one in WAITING_OPS if release(one) <= release(version)]
    return max(older, key=release) if older else min(WAITING_OPS, key=release)


def borrowed_table(version: str = torch.__version__) -> str | None:
    """Which table stands for that of a torch without one, as a sentence; None where it has its own."""
    used = _measured_on(version)
    if release(used) == release(version):
        return None
    return f"torch {version} has no table of the ops that wait: the dry run used that of torch {used}"


def rule_for(name: str, overload: str, version: str = torch.__version__) -> Rule | None:
    """The rule of an op by schema name ("aten::nonzero") and overload name, None if it never syncs in this torch."""
    if "dimname" in overload:  # named dimensions, which torch 2.4 has: it calls the op that has none
        return None
    op = f"{name}.{overload}" if overload else name
    rule = _RULES.get(op) or _RULES.get(name)
    if rule is not None:
        return rule
    cause = _NAMES.get(op) or _NAMES.get(name)
    waits = WAITING_OPS[_measured_on(version)].get(op)
    if waits == "never" or (waits is None and cause is None):
        return None
    if waits == "sometimes":
        return _always(
            (cause or Cause("other", name.removeprefix("aten::")))._replace(certainty="may", reason=_SOMETIMES)
        )
    return _always(cause or Cause("other", name.removeprefix("aten::")))


def named_ops() -> frozenset[str]:
    """The ops whose sync has a name, so that it must be known whether they wait."""
    return frozenset(_NAMES)
