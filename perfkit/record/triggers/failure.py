"""What is kept of the exception that ended a run, where the triggers "exception" or "out-of-memory" are on.

The step in which it was raised is over: what it did can be recorded no more. What stands still is kept: how far that
step was, where the program stood, and what memory was like. Values of variables are not: they are the user's data.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from perfkit import _env
from perfkit._code_owner import USER, function_name, owner_of
from perfkit._location import Location
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.watchers.step_memory import resident_bytes
from perfkit.run.records import Failure, Phase

#: The user's lines that are kept, the innermost: a recursion has thousands.
_LINES = 50
#: torch's own files, by the phase of a step in which they run.
_RUNS_IN: tuple[tuple[str, Phase], ...] = (
    ("/torch/utils/data/", "data"),
    ("/torch/autograd/", "backward"),
    ("/torch/_tensor.py", "backward"),
    ("/torch/optim/", "optimizer"),
    ("/torch/nn/modules/", "forward"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had: torch's of a device, torch's of the host, or Python's."""
    torch: Any = _env.torch_if_loaded()
    of_device = getattr(torch, "OutOfMemoryError", ())
    host = isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    return isinstance(error, (MemoryError, of_device)) or host


def failure_of(error: BaseException, clock: StepClock, *, dropped: int | None, window: int | None) -> Failure:
    """What is known of ``error``, which ended the run in the step that ``clock`` is in.

    ``dropped`` is the step that an integration has dropped last, ``window`` the open window, which is saved as far as
    it came.
    """
    running, step = clock.running, clock.step_num
    places, phase = _walk(error.__traceback__)
    if not running and phase != "data" and dropped != step:
        # An error that leaves ``for batch in prof.steps(...)`` has closed its step by now; one in a fetch, none.
        step = max(0, step - 1)
    device = _device_memory()
    return Failure(
        error=f"{type(error).__name__}: {error}".rstrip(": ")[:2000],
        out_of_memory=is_out_of_memory(error),
        step=step,
        phase=phase or (clock.phase if running else None),
        in_step_ns=sum(clock.times()) if running else None,
        lines=tuple(places[-_LINES:]),
        window=window,
        memory_bytes=device[0],
        memory_peak_bytes=device[1],
        rss_bytes=resident_bytes(),
    )


def _walk(trace: TracebackType | None) -> tuple[list[Location], Phase | None]:
    """The user's lines, outermost first, and the phase that torch's files among the frames tell."""
    places: list[Location] = []
    phase: Phase | None = None
    while trace is not None:
        code = trace.tb_frame.f_code
        owner = owner_of(code.co_filename)
        if owner == USER:
            places.append(Location(file=code.co_filename, line=trace.tb_lineno, function=function_name(code)))
            if phase == "optimizer":
                phase = None  # a closure: Lightning's whole step runs inside the optimizer's
        elif owner == "torch":
            path = code.co_filename.replace("\\", "/")
            if phase not in ("data", "backward"):  # a dataset and a backward may call modules
                phase = next((told for part, told in _RUNS_IN if part in path), phase)
        trace = trace.tb_next
    return places, phase


def _device_memory() -> tuple[int | None, int | None]:
    if not _env.cuda_in_use():
        return None, None
    import torch

    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def in_words(failure: Failure) -> str:
    """The failure as a sentence for the report."""
    where = f" at {failure.lines[-1].file}:{failure.lines[-1].line}" if failure.lines else ""
    within = f" in the {failure.phase} phase" if failure.phase is not None else ""
    return f"the run ended in step {failure.step}{within}{where}: {failure.error.splitlines()[0]} (failure.json)"
