"""Counts the floating point operations of one step, forward and backward, by the precision they were computed in.

A dispatch mode sees every op of the step and applies torch's own formulas (``torch.utils.flop_counter``). It is
not ``FlopCounterMode`` itself, because that puts hooks on all modules, runs both branches of a ``cond``, and
lets an error in a formula end the step. It slows the step it runs in, so that step is one of its own that no
timing holds.

Where a count would be wrong there is none, and the reason is told: under torch.compile (ops are inside graphs),
in inference mode (ops arrive undivided), for tensor subclasses (a DTensor's op is not what this rank computes),
for attention and recurrent layers without a formula (attention on a CPU is one), and for operators of other
libraries, whose work nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfkit.run.records import Phase, StepFlops

#: Libraries of operators whose uncounted ops do little arithmetic: elementwise, copies, bookkeeping, communication.
_COUNTED = ("aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "quantized_decomposed")
#: Ops of torch's own that do much and have no formula in some version; a name that contains one is not counted.
_HEAVY = ("attention", "lstm", "gru", "rnn", "mkldnn_linear", "conv", "scaled_grouped_mm", "_grouped_mm", "_int_mm")


class FlopCount:
    """Counts between `start` and `stop`, on the calling thread and the autograd threads that it makes work.

    ``phase`` tells the running phase: the model runs in no optimizer and in no validation, and what runs with
    gradients on inside a backward is recomputed.
    """

    def __init__(self, phase: Callable[[], Phase]) -> None:
        self._phase = phase
        self._mode: Any = None
        self._by_precision: dict[str, int] = {}
        self._recomputed = 0
        self._devices: set[Any] = set()
        self._problem: str | None = None

    def start(self) -> None:
        """Begin to count."""
        self._mode = _mode(self._count)
        self._mode.__enter__()

    def stop(self) -> None:
        """End counting."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)

    def _count(self, func: Any, types: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add one op; never raises, for the op is the program's."""
        if self._problem is not None or self._phase() in ("optimizer", "validation"):
            return
        try:
            self._problem = self._add(func, types, args, kwargs, out)
        except Exception as error:  # noqa: BLE001 - a formula that does not know its op's arguments
            self._problem = f"torch's formula for {func} failed: {type(error).__name__}: {error}"

    def _add(self, func: Any, types: Any, args: Any, kwargs: Any, out: Any) -> str | None:
        import torch
        from torch.utils.flop_counter import flop_registry

        if torch.is_inference_mode_enabled():
            return "the step runs in inference mode, where ops arrive undivided"
        plain = (torch.Tensor, torch.nn.Parameter)
        subclass = next((kind for kind in types if kind not in plain), None)
        if subclass is not None:
            return f"a {subclass.__name__} was computed with, and its ops are not those of one device"
        packet: Any = getattr(func, "_overloadpacket", func)
        formula = flop_registry.get(packet)
        if formula is None:
            return _uncounted(func)
        flops = int(formula(*args, **kwargs, out_val=out))
        first = next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point())
        name = _precision(first, convolution="conv" in str(packet))
        self._by_precision[name] = self._by_precision.get(name, 0) + flops
        self._devices.add(first.device)
        if torch.is_grad_enabled() and self._phase() == "backward":
            self._recomputed += flops
        return None

    def result(self, step: int) -> StepFlops:
        """What step ``step`` computed, or why that is not known."""
        problem = self._problem
        if problem is None and not sum(self._by_precision.values()):
            problem = "no op with a known number of operations was seen in the step"
        if problem is None and len(self._devices) > 1:
            problem = f"the step computed on {len(self._devices)} devices"
        if problem is not None:
            return StepFlops(step=step, problem=problem)
        return StepFlops(
            step=step,
            by_precision=dict(self._by_precision),
            recomputed=self._recomputed,
            device=_device_name(next(iter(self._devices))),
        )


def _mode(count: Callable[[Any, Any, Any, Any, Any], None]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class has no annotations
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            out = func(*args, **kwargs)
            count(func, types, args, kwargs, out)
            return out

    return Counting()  # type: ignore[no-untyped-call]  # the same


def _uncounted(func: Any) -> str | None:
    """Why an op without a formula spoils the count, None where it does not."""
    name = str(func)  # "aten.add.Tensor"
    library, _, rest = name.partition(".")
    if library not in _COUNTED:
        return f"torch does not know how many operations {name} takes"
    op = rest.partition(".")[0]
    if any(heavy in op for heavy in _HEAVY):
        return f"torch has no formula for {name}"
    return None


def _precision(tensor: Any, *, convolution: bool) -> str:
    """What the units compute in; float32 on a GPU may be TF32, by torch's switches for matmul and convolution."""
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    if name == "float32" and tensor.is_cuda and torch.version.hip is None:
        backends: Any = torch.backends
        switch = backends.cudnn.conv if convolution else backends.cuda.matmul
        return "tf32" if switch.fp32_precision == "tf32" else name
    return name


def _device_name(device: Any) -> str | None:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else None
