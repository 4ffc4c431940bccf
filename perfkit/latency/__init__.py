"""How long a model takes for one batch, at each batch size: measured until it can be believed, or said why not.

latency = perfkit.measure_latency(model, torch.randn(1, 3, 224, 224), batch_sizes=(1, 8, 64))
print(latency)            # a table; in a notebook with a drawing
latency.knee              # the largest batch size that is still worth its latency
latency.to_json()
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from perfkit import _env
from perfkit.errors import UsageError

if TYPE_CHECKING:
    import torch

    from perfkit.latency.measuring import Progress
    from perfkit.latency.results import BatchLatency as BatchLatency
    from perfkit.latency.results import Latency

__all__ = ["measure_latency"]

#: Half a second of samples per batch size is plenty on a quiet machine; this is for models that take seconds, and for
#: machines where it has to be tried again.
_BUDGET_S = 30.0
#: What takes less needs no progress bar, and one that flashes by is noise.
_PATIENCE_S = 1.0


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
    half a second, one after the other, with nothing queued before each. On a GPU a call is timed by CUDA events, with
    its launches (not run on a GPU yet). A measurement that does not keep still is made again while there is time, and
    is told as not stable if it never does. Inputs are moved to the model's device beforehand, and are not timed.

    A module is in evaluation mode while it is measured. Its modes, the gradient mode and all random number generators
    are afterwards as before; what a model changes of itself when it is called is not put back.

    Args:
        model: A module, or any callable.
        example: A tensor, a tuple or list of positional arguments, a mapping of keyword arguments, with the batch as
            the first dimension: tensors whose first dimension is that of the first tensor are resized by repeating
            their rows, others are passed on as they are. Or a callable that takes a batch size and returns the inputs.
        batch_sizes: Measured from the smallest on. One that the model cannot take is told with its reason.
        inference_mode: Call the model under ``torch.inference_mode()``; False leaves the gradient mode as it is, for a
            model that keeps tensors it makes when called and is trained with them later, which torch then refuses.
        budget_s: Seconds for all sizes, each an equal share of what is left. One call is never cut short.
        progress: Show a bar on stderr, where that is a terminal, from one second on.

    Raises:
        UsageError: an argument is wrong, or the model could be called at none of the sizes (the error is the cause).
        MissingDependency: torch is not installed.
    """
    torch_: Any = _env.require_torch("measure_latency")
    from perfkit.latency.inputs import check_example
    from perfkit.latency.measuring import measure_sizes
    from perfkit.latency.results import Latency
    from perfkit.latency.state_guard import evaluating, random_state_kept

    sizes = _sizes(batch_sizes)
    if not callable(model):
        raise UsageError(f"model must be a module or a callable, got {type(model).__name__}")
    if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s must be a positive number of seconds, got {budget_s!r}")
    check_example(example)
    device = _device_of(model)
    on_cuda = device is not None and device.type == "cuda"
    with (
        # Of all devices: a function may draw on another one than its inputs are on.
        random_state_kept(list(range(torch_.cuda.device_count())) if torch_.cuda.is_initialized() else []),
        evaluating(model),
        torch_.inference_mode() if inference_mode else nullcontext(),
        torch_.cuda.device(device) if on_cuda else nullcontext(),
        _bar(show=progress) as report,
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
    """The one device of a module's parameters and buffers; None of a callable without any."""
    from itertools import chain

    import torch

    if not isinstance(model, torch.nn.Module):
        return None
    devices = {tensor.device for tensor in chain(model.parameters(), model.buffers())}
    if len(devices) > 1:
        raise UsageError(
            f"the model must be on one device, it is on {', '.join(sorted(map(str, devices)))}: "
            "the latency of a model over several devices is not measured"
        )
    device = next(iter(devices), None)
    if device is not None and device.type not in ("cpu", "cuda"):
        raise UsageError(f"latency is measured on cpu and cuda, the model is on {device}")
    return device


@contextmanager
def _bar(*, show: bool) -> Iterator[Progress]:
    """A progress bar from one second on; it is drawn between samples only, for a thread of its own would be timed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    began = time.monotonic()
    bar = Progress(
        TextColumn("latency at batch size {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    task: TaskID | None = None

    def report(size: int, part: float) -> None:
        nonlocal task
        if task is None:
            if not show or time.monotonic() - began < _PATIENCE_S or not bar.console.is_terminal:
                return
            bar.start()
            task = bar.add_task(str(size), total=1.0)
        bar.update(task, completed=part, description=str(size), refresh=True)

    try:
        yield report
    finally:
        if task is not None:
            bar.stop()
