"""How long a model takes for one batch, at each batch size: measured until it is stable, or reported with the reason.

latency = perfkit.measure_latency(model, torch.randn(1, 3, 224, 224), batch_sizes=(1, 8, 64))
print(latency)            # a table; in a notebook with a drawing
latency.knee              # the largest batch size that is still worth its latency
latency.to_json()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

from perfkit import _env
from perfkit.errors import UsageError

if TYPE_CHECKING:
    import torch

    from perfkit.latency.results import BatchLatency as BatchLatency
    from perfkit.latency.results import Latency

__all__ = ["measure_latency"]

#: Half a second of samples per batch size is enough on an idle machine; the rest is for models that take seconds, and
#: for machines where the measurement must be repeated.
_BUDGET_S = 30.0


def measure_latency(
    model: Callable[..., Any],
    example: Any,
    batch_sizes: Iterable[int] = (1, 8, 64),
    *,
    inference_mode: bool = True,
    budget_s: float = _BUDGET_S,
    progress: bool = True,
) -> Latency:
    """Measure how long a model takes for one call at each batch size, on the device that it is on.

    Each size is warmed up until the medians of three windows agree within 10%, then sampled: at least 200 calls and
    half a second, one call after the other, with nothing queued before each. On a GPU a call is timed by CUDA events,
    including its launches (run against a simulated CUDA runtime). A measurement that does not settle is repeated while
    there is time, and reported as not stable if it never settles. Inputs are moved to the model's device before the
    measurement.

    A module is in evaluation mode while it is measured. Its modes, the gradient mode and all random number generators
    are restored afterwards; changes that the model makes to itself when it is called are not undone.

    Args:
        model: A module, or any callable.
        example: A tensor, a tuple or list of positional arguments, or a mapping of keyword arguments, with the batch as
            the first dimension: tensors whose first dimension is that of the first tensor are resized by repeating
            their rows, others are passed unchanged. Or a callable that takes a batch size and returns the inputs.
        batch_sizes: Measured from the smallest to the largest. A size that the model cannot take is reported with the
            reason.
        inference_mode: Call the model under ``torch.inference_mode()``. False leaves the gradient mode unchanged, for a
            model that keeps tensors it makes when called and is trained with them later, which torch then refuses.
        budget_s: Seconds for all sizes; each gets an equal share of the remaining time. A call is never interrupted.
        progress: Show a bar on stderr after one second, if stderr is a terminal.

    Raises:
        UsageError: an argument is invalid, or the model could be called at no size (the error is the cause).
        MissingDependency: torch is not installed.
    """
    torch_: Any = _env.require_torch("measure_latency")
    # These import torch and rich, which `import perfkit` must not load.
    from perfkit.latency.inputs import check_example
    from perfkit.latency.measuring import measure_sizes
    from perfkit.latency.progress_bar import progress_bar
    from perfkit.latency.results import Latency
    from perfkit.latency.state_guard import evaluation_mode, preserved_random_state

    sizes = _sizes(batch_sizes)
    if not callable(model):
        raise UsageError(f"model must be a module or a callable, got {type(model).__name__}")
    if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s must be a positive number of seconds, got {budget_s!r}")
    check_example(example)
    device = _device_of(model)
    on_cuda = device is not None and device.type == "cuda"
    with (
        # Of all devices: a function may draw numbers on another device than that of its inputs.
        preserved_random_state(list(range(torch_.cuda.device_count())) if torch_.cuda.is_initialized() else []),
        evaluation_mode(model),
        torch_.inference_mode() if inference_mode else nullcontext(),
        torch_.cuda.device(device) if on_cuda else nullcontext(),
        progress_bar(show=progress) as report,
    ):
        batches, used, error = measure_sizes(
            model, example, sizes, device=device, budget_ns=round(budget_s * 1e9), progress=report
        )
    if error is not None and all(batch.problem is not None for batch in batches):
        raise UsageError(f"the model could be called at no batch size: at {sizes[0]}, {batches[0].problem}") from error
    return Latency(
        model=getattr(model, "__qualname__", type(model).__name__),
        device=str(used),
        device_name=torch_.cuda.get_device_name(used) if used.type == "cuda" else None,
        threads=torch_.get_num_threads(),
        inference_mode=inference_mode,
        batches=tuple(batches),
    )


def _sizes(batch_sizes: Iterable[int]) -> list[int]:
    given: list[Any] = list(batch_sizes) if isinstance(batch_sizes, Iterable) else []
    if not given or any(type(size) is not int or size < 1 for size in given):
        raise UsageError(f"batch_sizes must be positive whole numbers, as in (1, 8, 64); got {batch_sizes!r}")
    return sorted(set(given))


def _device_of(model: Callable[..., Any]) -> torch.device | None:
    """The one device of a module's parameters and buffers; None for a callable without any."""
    import torch  # perfkit never imports torch before the program does

    if not isinstance(model, torch.nn.Module):
        return None
    devices = {tensor.device for tensor in chain(model.parameters(), model.buffers())}
    if len(devices) > 1:
        raise UsageError(
            f"the model must be on one device, it is on {', '.join(sorted(map(str, devices)))}: "
            "perfkit does not measure a model on several devices"
        )
    device = next(iter(devices), None)
    if device is not None and device.type not in ("cpu", "cuda"):
        raise UsageError(f"latency is measured on cpu and cuda, the model is on {device}")
    return device
