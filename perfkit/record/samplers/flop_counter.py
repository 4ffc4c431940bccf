"""Counts the floating point operations of one step, forward and backward, by the precision they were computed in.

A dispatch mode sees every op of the step and applies torch's own formulas (``torch.utils.flop_counter``). It is not
``FlopCounterMode`` itself, because that puts hooks on all modules, runs both branches of a ``cond``, and lets an error
in a formula end the step. Counting slows the step, so it gets a step of its own that no timing includes.

Where a count would be wrong there is none, and the reason is recorded: under torch.compile (ops are inside graphs), in
inference mode (ops arrive undivided), for tensor subclasses (a DTensor's op is not what this rank computes), for
attention and recurrent layers without a formula (such as attention on a CPU), and for operators of other libraries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from perfkit import _env
from perfkit._raised_signals import leave_to_program
from perfkit._torch_versions import allows_tf32, convolution_precision
from perfkit.record.program_values import unseen
from perfkit.run.records import Phase, StepFlops

#: Libraries of operators whose ops without a formula do little arithmetic: elementwise, copies, bookkeeping,
#: communication.
_LIGHT_LIBRARIES = ("aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "quantized_decomposed")
#: Ops of torch's own that do much and have no formula in some version, by a part of their name.
_HEAVY = ("attention", "lstm", "gru", "rnn", "mkldnn_linear", "conv", "scaled_grouped_mm", "_grouped_mm", "_int_mm")


class FlopCounter:
    """Counts between `start` and `stop`, on the calling thread and its autograd threads.

    ``phase`` returns the running phase: ops of the optimizer and of validation do not count, and ops that run with
    gradients on inside a backward are recomputed ones.
    """

    def __init__(self, phase: Callable[[], Phase]) -> None:
        self._phase = phase
        self._mode: Any = None
        self._by_precision: Counter[str] = Counter()
        self._recomputed = 0
        self._devices: set[Any] = set()
        self._problem: str | None = None

    def start(self) -> None:
        """Start counting."""
        self._mode = _CountingMode(self._count)
        self._mode.__enter__()

    def stop(self) -> None:
        """Stop counting."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)

    @unseen
    def _count(self, func: Any, types: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add one op; never raises, because the op is the program's."""
        if self._problem is not None or self._phase() in ("optimizer", "validation"):
            return
        try:
            self._problem = self._add(func, types, args, kwargs, out)
        except Exception as error:  # noqa: BLE001 - a formula that does not know its op's arguments
            leave_to_program(error)
            self._problem = f"torch's formula for {func} failed: {type(error).__name__}: {error}"

    def _add(self, func: Any, types: Any, args: Any, kwargs: Any, out: Any) -> str | None:
        if torch.is_inference_mode_enabled():
            return "the step runs in inference mode, where ops arrive undivided"
        subclass = next((kind for kind in types if kind not in (torch.Tensor, torch.nn.Parameter)), None)
        if subclass is not None:
            return f"the step computes with {subclass.__name__}, whose ops are not those of one device"
        packet: Any = getattr(func, "_overloadpacket", func)
        formula = flop_registry.get(packet)
        if formula is None:
            return _uncounted(func)
        flops = int(formula(*args, **kwargs, out_val=out))
        first = next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point())
        self._by_precision[_precision(first, convolution="conv" in str(packet))] += flops
        self._devices.add(first.device)
        if torch.is_grad_enabled() and self._phase() == "backward":
            self._recomputed += flops
        return None

    def result(self, step: int) -> StepFlops:
        """What step ``step`` computed, or why that is not known."""
        problem = self._problem
        if problem is None and not self._by_precision.total():
            problem = "no op with a known number of operations was seen in the step"
        if problem is None and len(self._devices) > 1:
            problem = f"the step computed on {len(self._devices)} devices"
        if problem is not None:
            return StepFlops(step=step, problem=problem)
        (device,) = self._devices
        return StepFlops(
            step=step,
            by_precision=dict(self._by_precision),
            recomputed=self._recomputed,
            device=_device_name(device),
        )


def _device_name(device: torch.device) -> str | None:
    """What peaks are known by; torch has no name for Apple's, which are part of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _env.cpu_name() if device.type == "mps" else None


class _CountingMode(TorchDispatchMode):
    """Calls ``count`` after each op, with its result."""

    def __init__(self, count: Callable[[Any, Any, Any, Any, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's class has no annotations
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self._count(func, types, args, kwargs, out)
        return out


@lru_cache(maxsize=4096)  # torch has some 3,000 ops; their names take as long to make as the rest of the count
def _uncounted(func: Any) -> str | None:
    """Why an op without a formula makes the count wrong; None where it does not."""
    name = str(func)  # "aten.add.Tensor"
    library, op, *_ = f"{name}.".split(".")
    if library not in _LIGHT_LIBRARIES:
        return f"torch does not know how many operations {name} takes"
    return f"torch has no formula for {name}" if any(heavy in op for heavy in _HEAVY) else None


def _precision(tensor: Any, *, convolution: bool) -> str:
    """What the units compute in; float32 on a GPU may be TF32, by torch's switches for matmul and convolution."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    if name == "float32" and tensor.is_cuda and torch.version.hip is None:
        precision = convolution_precision(torch) if convolution else torch.backends.cuda.matmul
        return "tf32" if allows_tf32(precision) else name
    return name
