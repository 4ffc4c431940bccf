"""What differs between the versions of torch that perfkit runs with; each difference has its one place.

The oldest is 2.4. A private name that may be missing is looked up where it is used, with a fallback
(``perfkit doctor`` lists them); here are the differences of what torch documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def release(version: str) -> tuple[int, ...]:
    """(2, 15) of "2.15.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def accelerator(torch: Any) -> Any | None:
    """``torch.accelerator``, which came with torch 2.6; None before."""
    return getattr(torch, "accelerator", None)


def compile_nothing(torch: Any) -> Callable[[], None]:
    """Run compiled functions as they were written, in each thread; returns what puts that back.

    ``torch.compiler.set_stance`` came with torch 2.6. Before, each call of a compiled function hands its compiler to
    Dynamo's private ``set_eval_frame``, which takes None for none.
    """
    if hasattr(torch.compiler, "set_stance"):
        stance = torch.compiler.set_stance("force_eager")
        return lambda: stance.__exit__(None, None, None)
    dynamo = torch._dynamo.eval_frame
    set_eval_frame = dynamo.set_eval_frame
    dynamo.set_eval_frame = lambda compiler: set_eval_frame(None)

    def put_back() -> None:
        dynamo.set_eval_frame = set_eval_frame

    return put_back


def writes(argument: Any) -> bool:
    """Whether an op writes into this argument of its schema; the argument's own ``is_write`` came after torch 2.4."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def convolution_precision(torch: Any) -> Any:
    """What sets the precision of float32 in cuDNN's convolutions: `torch.backends.cudnn.conv`, or what was before."""
    return getattr(torch.backends.cudnn, "conv", torch.backends.cudnn)


def allows_tf32(precision: Any) -> bool:
    """Whether TF32 stands for float32 there; ``fp32_precision`` came with torch 2.9, ``allow_tf32`` was before."""
    named = getattr(precision, "fp32_precision", None)
    return bool(precision.allow_tf32) if named is None else named == "tf32"
