"""What is kept of the exception that ended a run, where the trigger "exception" or "out-of-memory" is on.

The step that raised it is over, so it cannot be recorded. What can still be read is kept: how far the step was, where
the program stood, and the memory in use. Values of variables are not kept: they are the user's data.
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
_MAX_LINES = 50
#: torch's own files, by the phase of a step in which they run.
_RUNS_IN: tuple[tuple[str, Phase], ...] = (
    ("/torch/utils/data/", "data"),
    ("/torch/autograd/", "backward"),
    ("/torch/_tensor.py", "backward"),
    ("/torch/optim/", "optimizer"),
    ("/torch/nn/modules/", "forward"),
)


def text_of(error: BaseException) -> str:
    """The type and the message of an error, which is the program's and may have none that can be read."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the program's own __str__
        message = "<exception str() failed>"  # as in Python's tracebacks
    return f"{type(error).__name__}: {message}".rstrip(": ")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be allocated: torch's error for a device or for the host, or Python's."""
    torch: Any = _env.torch_if_loaded()
    device_error = getattr(torch, "OutOfMemoryError", ())
    host = isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in text_of(error)
    return isinstance(error, (MemoryError, device_error)) or host


def failure_of(error: BaseException, clock: StepClock, *, dropped: int | None, window: int | None) -> Failure:
    """What is known of ``error``, which ended the run in the step that ``clock`` is in.

    ``dropped`` is the last step that an integration has dropped, ``window`` the open window, which is saved as far as
    it got.
    """
    running, step = clock.running, clock.step_num
    lines, phase = _walk(error.__traceback__)
    if not running and phase != "data" and dropped != step:
        # An error that leaves ``for batch in prof.steps(...)`` has closed its step by now; one in a fetch has not.
        step = max(0, step - 1)
    torch: Any = _env.torch_if_loaded() if _env.cuda_in_use() else None
    return Failure(
        error=text_of(error)[:2000],
        out_of_memory=is_out_of_memory(error),
        step=step,
        phase=phase or (clock.phase if running else None),
        in_step_ns=sum(clock.times()) if running else None,
        lines=tuple(lines[-_MAX_LINES:]),
        window=window,
        memory_bytes=torch.cuda.memory_allocated() if torch is not None else None,
        memory_peak_bytes=torch.cuda.max_memory_allocated() if torch is not None else None,
        rss_bytes=resident_bytes(),
    )


def _walk(trace: TracebackType | None) -> tuple[list[Location], Phase | None]:
    """The user's lines, outermost first, and the phase of the step by torch's files among the frames."""
    lines: list[Location] = []
    phase: Phase | None = None
    while trace is not None:
        code = trace.tb_frame.f_code
        owner = owner_of(code.co_filename)
        if owner == USER:
            lines.append(Location(file=code.co_filename, line=trace.tb_lineno, function=function_name(code)))
            if phase == "optimizer":
                phase = None  # a closure: Lightning's whole step runs inside the optimizer's
        elif owner == "torch":
            path = code.co_filename.replace("\\", "/")
            if phase not in ("data", "backward"):  # a dataset and a backward may call modules
                phase = next((runs_in for part, runs_in in _RUNS_IN if part in path), phase)
        trace = trace.tb_next
    return lines, phase


def sentence(failure: Failure) -> str:
    """The failure as a sentence for the report."""
    at = f" at {failure.lines[-1].file}:{failure.lines[-1].line}" if failure.lines else ""
    phase = f" in the {failure.phase} phase" if failure.phase is not None else ""
    return f"the run ended in step {failure.step}{phase}{at}: {failure.error.splitlines()[0]} (failure.json)"
