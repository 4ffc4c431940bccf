"""Attention scores that are computed only if something other than attention asks for them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

#: A score that is this low has a weight of zero, and adding a score to it changes nothing: -1e9 is common in models.
_LOW = -1e9
_GETTERS = ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_sparse", "is_nested", "is_quantized")
_REQUIRES_GRAD = getattr(torch.Tensor, "requires_grad").__get__  # noqa: B009 - a descriptor, not its value's type
_METADATA = {getattr(torch.Tensor, name).__get__ for name in _GETTERS} | {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point,
}  # fmt: skip


class Steps(NamedTuple):
    """What the program has computed so far: ``softmax(query @ keys * scale + masks)``, or only a part of it."""

    query: torch.Tensor
    keys: torch.Tensor  # transposed, as they are multiplied with
    replay: tuple[Callable[[Any], Any], ...]  # the program's own ops, the first one of no argument
    dtype: torch.dtype
    scale: float = 1.0
    masks: tuple[torch.Tensor, ...] = ()
    is_softmax: bool = False


class DeferredScores(torch.Tensor):
    """Stands for scores, or for their softmax. Any op that is no part of attention gets the real tensor instead."""

    _steps: Steps
    _real: torch.Tensor | None
    #: Where it was made, what to call with that once it is fused, and once the real tensor is asked for.
    _told: tuple[Any, Callable[[Any], None], Callable[[Any], None]]
    _context: tuple[bool, torch.dtype | None]
    _versions: list[int | None]

    def __new__(cls, steps: Steps, place: Any, on_fused: Callable[[Any], None], on_real: Callable[[Any], None]) -> Any:
        """A tensor without storage, which has a shape and a type."""
        shape = (*steps.query.shape[:-1], steps.keys.shape[-1])
        made: Any = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=steps.dtype, device=steps.query.device)
        made._steps, made._real = steps, None
        made._told = place, on_fused, on_real
        made._context = _context(steps.query)
        made._versions = [_version(one) for one in (steps.query, steps.keys, *steps.masks)]
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Go on with the attention, or with the real tensors."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _METADATA:
                return func(*args, **kwargs)
            scores = next((one for one in args if isinstance(one, DeferredScores)), None)
            if scores is not None and scores._real is None:
                if func is _REQUIRES_GRAD:
                    return scores._requires_grad()
                done = scores._go_on(func, args, kwargs)
                if done is not None:
                    return done
        args, kwargs = tree_map_only(DeferredScores, lambda one: one.computed(), (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what did not come through `__torch_function__`: its gradients would be lost."""
        raise RuntimeError(f"fused-attention does not know how this program uses its attention scores: {func}")

    def computed(self) -> torch.Tensor:
        """The tensor, computed as the program would have."""
        if self._real is None:
            self._check()
            self._told[2](self._told[0])
            grad, autocast = self._context
            with torch.set_grad_enabled(grad), autocast_as(self._steps.query.device.type, autocast):
                first, *others = self._steps.replay
                real = first(None)
                for op in others:
                    real = op(real)
            self._real = real
        return self._real

    def _check(self) -> None:
        tensors = (self._steps.query, self._steps.keys, *self._steps.masks)
        if [_version(one) for one in tensors] != self._versions:
            raise RuntimeError("fused-attention: the program writes into what its attention scores are computed from")

    def _requires_grad(self) -> bool:
        steps = self._steps
        return self._context[0] and any(one.requires_grad for one in (steps.query, steps.keys, *steps.masks))

    def _go_on(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the op gives where it is a part of attention, else None."""
        if self._context != _context(self._steps.query):
            return None
        name = func.__name__
        in_place = (name.endswith("_") and not name.endswith("__")) or name in ("__imul__", "__itruediv__", "__iadd__")
        name = name.strip("_")
        name = _NAMES.get(name[1:] if name in ("imul", "itruediv", "iadd", "rmul", "radd") else name, "")
        if name in ("matmul", "einsum"):
            return self._attend(args, kwargs) if name == "matmul" or _is_sum_over_keys(args) else None
        after = getattr(self, f"_{name}")(args, kwargs) if name else None
        if after is None:
            return None
        op = _with_argument(func, args, kwargs, self)
        after = after._replace(replay=(*self._steps.replay, op))
        if not in_place:
            return DeferredScores(after, *self._told)
        self._steps = after
        self._versions = [_version(one) for one in (after.query, after.keys, *after.masks)]
        return self

    def _attend(self, args: Any, kwargs: Any) -> Any:
        query, keys = self._steps.query, self._steps.keys
        values = args[-1]
        fits = self._steps.is_softmax and len(args) in (2, 3) and args[-2] is self and not kwargs
        fits = fits and type(values) is torch.Tensor and values.shape[:-1] == (*keys.shape[:-2], keys.shape[-1])
        fits = fits and (self._context[1] is not None or values.dtype == query.dtype == self.dtype)
        if not fits:
            return None
        self._check()
        mask = _combined(self._steps.masks, query.dtype)
        rows = keys.transpose(-2, -1)
        if flat := query.dim() == 3:
            # The fast kernels take heads in a dimension of their own.
            query, rows, values = query.unsqueeze(1), rows.unsqueeze(1), values.unsqueeze(1)
            mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        self._told[1](self._told[0])
        result = torch.nn.functional.scaled_dot_product_attention(
            query, rows, values, attn_mask=mask, scale=self._steps.scale
        )
        return (result.squeeze(1) if flat else result).contiguous()

    def _scaled(self, factor: float | None) -> Steps | None:
        steps = self._steps
        if factor is None or steps.masks or steps.is_softmax:
            return None
        return steps._replace(scale=steps.scale * factor)

    def _mul(self, args: Any, kwargs: Any) -> Steps | None:
        other = args[1] if args[0] is self else args[0]
        return self._scaled(_number(other)) if len(args) == 2 and not kwargs else None

    def _div(self, args: Any, kwargs: Any) -> Steps | None:
        number = _number(args[1]) if len(args) == 2 and args[0] is self and not kwargs else None
        return self._scaled(1 / number if number else None)

    def _add(self, args: Any, kwargs: Any) -> Steps | None:
        other = args[1] if len(args) == 2 and args[0] is self else args[0]
        if len(args) != 2 or kwargs or not isinstance(other, torch.Tensor) or isinstance(other, DeferredScores):
            return None
        return self._masked(other) if other.dtype == self.dtype else None

    def _masked(self, mask: torch.Tensor) -> Steps | None:
        if self._steps.is_softmax or mask.device != self.device or mask.dim() == 0:
            return None
        try:
            mask.expand(self.shape)
        except RuntimeError:
            return None
        return self._steps._replace(masks=(*self._steps.masks, mask))

    def _filled(self, hidden: Any, value: Any) -> Steps | None:
        number = _number(value)
        if not isinstance(hidden, torch.Tensor) or hidden.dtype != torch.bool or number is None:
            return None
        if number == -math.inf:
            return self._masked(~hidden)
        if number > _LOW or self.dtype not in (torch.float32, torch.bfloat16):
            return None
        return self._masked(torch.zeros_like(hidden, dtype=self.dtype).masked_fill_(hidden, number))

    def _masked_fill(self, args: Any, kwargs: Any) -> Steps | None:
        return self._filled(*args[1:]) if len(args) == 3 and args[0] is self and not kwargs else None

    def _where(self, args: Any, kwargs: Any) -> Steps | None:
        fits = len(args) == 3 and args[1] is self and not kwargs
        return self._filled(~args[0], args[2]) if fits and args[0].dtype == torch.bool else None

    def _softmax(self, args: Any, kwargs: Any) -> Steps | None:
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        dtype = next((one for one in args[2:] if isinstance(one, torch.dtype)), kwargs.get("dtype"))
        if self._steps.is_softmax or dim not in (-1, self.dim() - 1) or dtype not in (None, self.dtype, torch.float32):
            return None
        in_autocast = self._context[1] is not None
        return self._steps._replace(is_softmax=True, dtype=dtype or (torch.float32 if in_autocast else self.dtype))

    def _to(self, args: Any, kwargs: Any) -> Steps | None:
        wanted = torch.float32 if len(args) == 1 else args[1]
        wanted = wanted.dtype if isinstance(wanted, torch.Tensor) else wanted
        is_type = isinstance(wanted, torch.dtype) and wanted.is_floating_point and len(args) <= 2 and not kwargs
        return self._steps._replace(dtype=wanted) if is_type else None

    def _dropout(self, args: Any, kwargs: Any) -> Steps | None:
        given = {**dict(zip(("input", "p", "training", "inplace"), args, strict=False)), **kwargs}
        drops = given.get("training", True) and given.get("p", 0.5) > 0
        return None if drops else self._steps


#: Name of a function of torch -> the part of attention that it may be.
_NAMES = {
    "mul": "mul", "multiply": "mul", "div": "div", "truediv": "div", "divide": "div", "true_divide": "div",
    "add": "add", "masked_fill": "masked_fill", "where": "where", "softmax": "softmax", "dropout": "dropout",
    "to": "to", "float": "to", "type_as": "to", "matmul": "matmul", "bmm": "matmul", "einsum": "einsum",
}  # fmt: skip


def can_defer(query: Any, keys: Any) -> bool:
    """Whether a product may be that of attention: many matrices, the second one transposed."""
    if type(query) is not torch.Tensor or type(keys) is not torch.Tensor or query.dim() not in (3, 4):
        return False
    return (
        query.shape[:-2] == keys.shape[:-2]
        and query.dim() == keys.dim()
        and keys.stride(-2) == 1
        and keys.stride(-1) != 1
        and query.shape[-1] == keys.shape[-2]
        and query.dtype == keys.dtype
        and query.is_floating_point()
        and query.device == keys.device
        and not torch.compiler.is_compiling()
        and not _in_transform()
    )


def _in_transform() -> bool:
    """Whether this runs inside `torch.vmap` or `torch.func.grad`, whose tensors are not what they seem to be."""
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def deferred(product: Callable[[], Any], query: torch.Tensor, keys: torch.Tensor, *told: Any) -> Any:
    """The scores that ``product`` would compute; ``told`` is their place, and what to call with it."""
    autocast = _context(query)[1]
    return DeferredScores(Steps(query, keys, (lambda _: product(),), autocast or query.dtype), *told)


def is_product_of_rows(equation: Any) -> bool:
    """Whether an einsum is ``query @ keys.transpose(-2, -1)``: "bhid,bhjd->bhij"."""
    first, second, result = _letters(equation)
    batch = first[:-2]
    return (
        len(first) == len(second) >= 3
        and batch == second[:-2] == result[:-2]
        and first[-1] == second[-1] not in result
        and result == batch + first[-2] + second[-2]
    )


def _is_sum_over_keys(args: Any) -> bool:
    """Whether an einsum is ``weights @ values``: "bhij,bhjd->bhid"."""
    first, second, result = _letters(args[0])
    batch = first[:-2]
    return (
        len(first) == len(second) >= 3
        and batch == second[:-2] == result[:-2]
        and first[-1] == second[-2] not in result
        and result == batch + first[-2] + second[-1]
    )


def _letters(equation: Any) -> tuple[str, str, str]:
    parts = equation.replace(" ", "").replace("->", ",").split(",") if isinstance(equation, str) else []
    plain = len(parts) == 3 and all(part.isalpha() and len(set(part)) == len(part) for part in parts)
    return (parts[0], parts[1], parts[2]) if plain else ("", "", "")


def _combined(masks: tuple[torch.Tensor, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """One mask: of bool where all are (True: attend), else what is added to the scores."""
    if all(one.dtype == torch.bool for one in masks):
        whole = masks[0] if masks else None
        for one in masks[1:]:
            whole = whole & one  # type: ignore[operator]
        return whole
    added = [torch.zeros_like(one, dtype=dtype).masked_fill_(~one, -math.inf) if one.dtype == torch.bool else one
             for one in masks]  # fmt: skip
    return sum(added[1:], added[0]).to(dtype)


def _number(value: Any) -> float | None:
    """A number, also from a tensor of the host that holds one; None for others: reading them may be a sync."""
    if isinstance(value, torch.Tensor):
        known = value.dim() == 0 and value.device.type == "cpu" and not value.requires_grad
        return float(value) if known else None
    return float(value) if isinstance(value, int | float) else None


def _with_argument(func: Any, args: Any, kwargs: Any, scores: Any) -> Callable[[Any], Any]:
    return lambda real: func(*(real if one is scores else one for one in args), **kwargs)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _context(tensor: torch.Tensor) -> tuple[bool, torch.dtype | None]:
    """Whether gradients are recorded, and what autocast computes in here."""
    kind = tensor.device.type
    return torch.is_grad_enabled(), torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def autocast_as(kind: str, dtype: torch.dtype | None) -> Any:
    """Autocast as it was; nothing where it is that already."""
    now = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return contextlib.nullcontext() if now == dtype else torch.autocast(kind, dtype=dtype, enabled=dtype is not None)
